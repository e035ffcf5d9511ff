package digits

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/rltrain/rltrain/envs"
)

// keyOf identifies a problem; the order of the list does not matter. A hash takes less memory than the text, and long runs
// sample millions.
func keyOf(name string, numbers []int) uint64 {
	sum := sha256.Sum256([]byte(name + " " + fmt.Sprint(slices.Sorted(slices.Values(numbers)))))
	return binary.LittleEndian.Uint64(sum[:])
}

// partOf assigns 2 of 10 problems to evaluation and 4 to warm-up. The key ignores the order of a list: the same numbers in
// another order are not an unseen problem.
func partOf(key uint64) envs.Part {
	switch place := key % 10; {
	case place < 2:
		return envs.Eval
	case place < 6:
		return envs.Warmup
	default:
		return envs.Train
	}
}

// sequence samples the problems of a split, each once per pass. The training splits start another pass, in another order,
// when all problems have been sampled.
type sequence struct {
	task *Task
	part envs.Part

	lock    sync.Mutex
	rng     *rand.Rand
	seen    map[uint64]struct{} // in this pass
	sampled [][]int
	round   int // length of the first pass; 0 until it ends
}

func (t *Task) sequence(part envs.Part) *sequence {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], t.seed)
	copy(key[16:], part)
	return &sequence{task: t, part: part, rng: rand.New(rand.NewChaCha8(key)), seen: map[uint64]struct{}{}}
}

// maxMisses consecutive duplicates mean that all problems have been sampled. It is ample while a split has at least one
// problem in a thousand.
const maxMisses = 20000

// at returns problem index; ok is false past the end of the split.
func (s *sequence) at(index int) (numbers []int, ok bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for len(s.sampled) <= index {
		if s.next() {
			continue
		}
		if s.round == 0 {
			s.round = len(s.sampled)
		}
		if s.part == envs.Eval || s.round == 0 {
			return nil, false
		}
		clear(s.seen)
	}
	return s.sampled[index], true
}

// next samples a problem that is new in this pass.
func (s *sequence) next() bool {
	for range maxMisses {
		numbers := s.task.sample(s.part, s.rng.IntN)
		key := keyOf(s.task.name, numbers)
		if _, seen := s.seen[key]; !seen && partOf(key) == s.part {
			s.seen[key] = struct{}{}
			s.sampled = append(s.sampled, numbers)
			return true
		}
	}
	return false
}

// maxCounted: above this many problems, in all splits together, they are not counted.
const maxCounted = 1 << 14

// size returns the number of distinct problems, 0 for too many to count.
func (s *sequence) size() int {
	if s.task.problems() >= maxCounted {
		return 0
	}
	for index := 0; s.round == 0; index++ {
		s.at(index)
	}
	return s.round
}

// problems returns the number of distinct problems, at most maxCounted.
func (t *Task) problems() int {
	if t.name == Reverse {
		return min(t.options.Max-shorterMin(t.options.Max)+1, maxCounted)
	}
	// There are C(r+n-1, n) multisets of n numbers out of r.
	r := t.options.Max - 9
	lists, all := float64(r), 0.0
	for n := 2; n <= t.options.Count; n++ {
		lists *= float64(r+n-1) / float64(n)
		if all += lists; all >= maxCounted {
			return maxCounted
		}
	}
	return int(all)
}
