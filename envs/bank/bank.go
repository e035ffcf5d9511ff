// Package bank keeps the exercises of files: worked examples, exercises to learn from, and exercises to be judged by, of
// which none is two of them.
package bank

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/envs"
)

// Source is a file and the exercises in it; one without a path is none.
type Source[E any] struct {
	Path string
	All  []E
}

// Bank is exercises in two parts. It may be used by several goroutines, except for FilterPrompts.
type Bank[E any] struct {
	Train, Eval []E

	seed  uint64
	lock  sync.Mutex
	epoch int
	order []int // of epoch; nil before the first
}

// Divide makes a bank of two files, of which either may be none; key is what makes two exercises the same. Exercises
// that are examples are left out. Without a file to judge by the last holdOut exercises of train are kept for that, and
// no other that is the same; an exercise that is in both files is an error. noun is what an exercise is called in errors.
func Divide[E any](seed uint64, noun string, train, eval Source[E], examples []E, holdOut int, key func(E) string) (*Bank[E], error) {
	b := &Bank[E]{seed: seed}
	for _, part := range []struct {
		from Source[E]
		into *[]E
	}{{train, &b.Train}, {eval, &b.Eval}} {
		*part.into = without(part.from.All, examples, key)
		if part.from.Path != "" && len(*part.into) == 0 {
			return nil, fmt.Errorf("%s: %d worked examples leave no other %s", part.from.Path, len(examples), noun)
		}
	}
	if eval.Path == "" {
		keep := len(b.Train) - holdOut
		if keep < 1 {
			return nil, fmt.Errorf("%s: %d %ss are too few to keep %d to be judged by", train.Path, len(b.Train), noun, holdOut)
		}
		b.Eval = b.Train[keep:]
		if b.Train = without(b.Train[:keep:keep], b.Eval, key); len(b.Train) == 0 {
			return nil, fmt.Errorf("%s: the last %d %ss are kept to be judged by, and all others are the same as one of them", train.Path, holdOut, noun)
		}
		return b, nil
	}
	judged := keys(b.Eval, key)
	for _, e := range b.Train {
		if judged[key(e)] {
			return nil, fmt.Errorf("%s and %s both have the %s %.60q: what is judged by must not be learnt from; use another file for one of them, or leave the second out to hold %ss of the first back", train.Path, eval.Path, noun, key(e), noun)
		}
	}
	return b, nil
}

func keys[E any](all []E, key func(E) string) map[string]bool {
	set := make(map[string]bool, len(all))
	for _, e := range all {
		set[key(e)] = true
	}
	return set
}

// without is the exercises that are the same as none of the others.
func without[E any](all, others []E, key func(E) string) []E {
	set := keys(others, key)
	return slices.DeleteFunc(slices.Clone(all), func(e E) bool { return set[key(e)] })
}

// Len is the number of exercises of a part.
func (b *Bank[E]) Len(part envs.Part) int {
	if part == envs.Eval {
		return len(b.Eval)
	}
	return len(b.Train)
}

// At is an exercise of a part: of Eval in the order of the file, else in an order that the seed shuffles anew each time
// around.
func (b *Bank[E]) At(part envs.Part, index int) (exercise E, err error) {
	switch {
	case part == envs.Eval && index >= 0 && index < len(b.Eval):
		return b.Eval[index], nil
	case part != envs.Eval && index >= 0 && len(b.Train) > 0:
		return b.Train[b.shuffled(index)], nil
	}
	return exercise, fmt.Errorf("there is no episode %d of part %q, which has %d", index, part, b.Len(part))
}

func (b *Bank[E]) shuffled(index int) int {
	b.lock.Lock()
	defer b.lock.Unlock()
	if epoch := index / len(b.Train); b.order == nil || epoch != b.epoch {
		var key [32]byte
		binary.LittleEndian.PutUint64(key[0:], b.seed)
		binary.LittleEndian.PutUint64(key[8:], uint64(epoch))
		b.epoch, b.order = epoch, rand.New(rand.NewChaCha8(key)).Perm(len(b.Train))
	}
	return b.order[index%len(b.Train)]
}

// FilterPrompts leaves out the exercises to learn from that keep refuses, and says how many there were.
func (b *Bank[E]) FilterPrompts(keep func(E) (bool, error)) (dropped int, err error) {
	var kept []E
	for _, e := range b.Train {
		ok, err := keep(e)
		if err != nil {
			return 0, err
		}
		if ok {
			kept = append(kept, e)
		}
	}
	dropped, b.Train, b.order = len(b.Train)-len(kept), kept, nil
	return dropped, nil
}

// Instruction reads the text file of option system_prompt.
func Instruction(path string) (string, error) {
	data, err := os.ReadFile(path)
	text := strings.TrimSpace(string(data))
	if err == nil && text == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	if err != nil {
		return "", &envs.OptionError{Option: "system_prompt", Err: err}
	}
	return text, nil
}
