// Package bank holds the problems read from files, in three disjoint sets: few-shot examples, training problems and
// evaluation problems.
package bank

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/envs"
)

// Source is a file and the problems in it. An empty Path means that there is no file.
type Source[E any] struct {
	Path string
	All  []E
}

// Bank is a training set and an evaluation set. All methods but FilterPrompts may be called concurrently.
type Bank[E any] struct {
	Train, Eval []E
	// Rank orders the training problems of each epoch, the lowest first and equal ones shuffled; nil = all are shuffled.
	Rank func(E) float64

	seed  uint64
	lock  sync.Mutex
	epoch int
	order []int // of epoch; nil before the first
}

// Divide builds a bank from a training file and an evaluation file; either may be missing. Problems with equal keys count
// as the same problem.
//
// Few-shot examples are not trained on, and an example that an evaluation file has is an error. Without an evaluation file,
// the last holdOut problems of train are held out, or the last fifth if there are no more than that, and their duplicates are
// dropped from train. A problem in both files is an error. Errors call a problem noun.
func Divide[E any](seed uint64, noun string, train, eval Source[E], examples []E, holdOut int, key func(E) string) (*Bank[E], error) {
	b := &Bank[E]{seed: seed}
	if eval.Path != "" {
		evaluated := keys(eval.All, key)
		for _, e := range examples {
			if evaluated[key(e)] {
				return nil, fmt.Errorf("%s: the %s %.60q is a few-shot example too: the model would be shown what it is asked; remove it from one of the files", eval.Path, noun, key(e))
			}
		}
	}
	for _, part := range []struct {
		from Source[E]
		into *[]E
	}{{train, &b.Train}, {eval, &b.Eval}} {
		*part.into = without(part.from.All, examples, key)
		if part.from.Path != "" && len(*part.into) == 0 {
			return nil, fmt.Errorf("%s: no %[3]s is left after %[2]d few-shot examples; lower the number of examples", part.from.Path, len(examples), noun)
		}
	}
	if eval.Path == "" {
		keep := len(b.Train) - holdOut
		if fifth := len(b.Train) / 5; keep < 1 && fifth > 0 {
			keep = len(b.Train) - fifth
		}
		if keep < 1 {
			return nil, fmt.Errorf("%s: %d %ss are too few to hold out %d for evaluation; lower --eval-samples or pass --eval-dataset", train.Path, len(b.Train), noun, holdOut)
		}
		b.Eval = b.Train[keep:]
		if b.Train = without(b.Train[:keep:keep], b.Eval, key); len(b.Train) == 0 {
			return nil, fmt.Errorf("%s: every %[3]s duplicates one of the last %[2]d, which are held out for evaluation; pass --eval-dataset", train.Path, holdOut, noun)
		}
		return b, nil
	}
	held := keys(b.Eval, key)
	for _, e := range b.Train {
		if held[key(e)] {
			return nil, fmt.Errorf("%s and %s share the %s %.60q: evaluation data must not be trained on; remove it from one file, or drop --eval-dataset to hold out training %ss", train.Path, eval.Path, noun, key(e), noun)
		}
	}
	return b, nil
}

// Add adds training problems of another data set. Few-shot examples and the evaluation problems are left out.
func (b *Bank[E]) Add(more, examples []E, key func(E) string) {
	b.Train, b.order = append(b.Train, without(more, slices.Concat(examples, b.Eval), key)...), nil
}

func keys[E any](all []E, key func(E) string) map[string]bool {
	set := make(map[string]bool, len(all))
	for _, e := range all {
		set[key(e)] = true
	}
	return set
}

// without returns all minus those whose key is in others.
func without[E any](all, others []E, key func(E) string) []E {
	set := keys(others, key)
	return slices.DeleteFunc(slices.Clone(all), func(e E) bool { return set[key(e)] })
}

// Len returns the number of problems in a split.
func (b *Bank[E]) Len(part envs.Part) int {
	if part == envs.Eval {
		return len(b.Eval)
	}
	return len(b.Train)
}

// At returns one problem of a split. Eval keeps the file's order; Train is shuffled anew each epoch, from the seed, and then
// sorted by Rank.
func (b *Bank[E]) At(part envs.Part, index int) (problem E, err error) {
	switch {
	case part == envs.Eval && index >= 0 && index < len(b.Eval):
		return b.Eval[index], nil
	case part != envs.Eval && index >= 0 && len(b.Train) > 0:
		return b.Train[b.shuffled(index)], nil
	}
	return problem, fmt.Errorf("episode %d is out of range: split %q has %d", index, part, b.Len(part))
}

func (b *Bank[E]) shuffled(index int) int {
	b.lock.Lock()
	defer b.lock.Unlock()
	if epoch := index / len(b.Train); b.order == nil || epoch != b.epoch {
		var key [32]byte
		binary.LittleEndian.PutUint64(key[0:], b.seed)
		binary.LittleEndian.PutUint64(key[8:], uint64(epoch))
		b.epoch, b.order = epoch, rand.New(rand.NewChaCha8(key)).Perm(len(b.Train))
		if b.Rank != nil {
			slices.SortStableFunc(b.order, func(i, j int) int { return cmp.Compare(b.Rank(b.Train[i]), b.Rank(b.Train[j])) })
		}
	}
	return b.order[index%len(b.Train)]
}

// FilterPrompts drops the training problems that keep rejects and returns how many it dropped.
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

// Instruction is the system prompt that the option system_prompt gives: the text of a file, or itself if it has several
// words, no file has that name, and it does not end like the name of a file.
func Instruction(path string) (string, error) {
	data, err := os.ReadFile(path)
	if end := filepath.Ext(path); err != nil && len(strings.Fields(path)) > 1 && (len(end) < 2 || strings.Contains(end, " ")) {
		return strings.TrimSpace(path), nil
	}
	text := strings.TrimSpace(string(data))
	if err == nil && text == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	if err != nil {
		return "", &envs.OptionError{Option: "system_prompt", Err: err}
	}
	return text, nil
}
