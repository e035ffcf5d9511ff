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

// keyOf stands for an exercise; it is the same for lists of the same numbers. A number takes less memory than
// the list as a text, and long runs draw many.
func keyOf(name string, numbers []int) uint64 {
	sum := sha256.Sum256([]byte(name + " " + fmt.Sprint(slices.Sorted(slices.Values(numbers)))))
	return binary.LittleEndian.Uint64(sum[:])
}

// partOf puts two exercises in ten aside for evaluation, and four for the warm-up. The order of a list does not
// matter: the same numbers in another order are no unseen exercise.
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

// A sequence is the exercises of a part in the order in which they are drawn, each once. Those to learn from begin
// again, in another order, when all have come.
type sequence struct {
	task *Task
	part envs.Part

	lock  sync.Mutex
	rng   *rand.Rand
	seen  map[uint64]struct{} // in this round
	drawn [][]int
	round int // length of the first round; 0 until it is over
}

func (t *Task) sequence(part envs.Part) *sequence {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], t.seed)
	copy(key[16:], part)
	return &sequence{task: t, part: part, rng: rand.New(rand.NewChaCha8(key)), seen: map[uint64]struct{}{}}
}

// maxMisses draws in a row without a new exercise mean that all have come. It is more than ever needed for the first
// where a part has at least one exercise in a thousand.
const maxMisses = 20000

// at is exercise index; false where there are not as many.
func (s *sequence) at(index int) (numbers []int, ok bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for len(s.drawn) <= index {
		if s.next() {
			continue
		}
		if s.round == 0 {
			s.round = len(s.drawn)
		}
		if s.part == envs.Eval || s.round == 0 {
			return nil, false
		}
		clear(s.seen)
	}
	return s.drawn[index], true
}

// next draws an exercise that has not come in this round.
func (s *sequence) next() bool {
	for range maxMisses {
		numbers := s.task.draw(s.part, s.rng.IntN)
		key := keyOf(s.task.name, numbers)
		if _, seen := s.seen[key]; !seen && partOf(key) == s.part {
			s.seen[key] = struct{}{}
			s.drawn = append(s.drawn, numbers)
			return true
		}
	}
	return false
}

// manyExercises is how many exercises of all parts together are too many to be counted.
const manyExercises = 1 << 14

// size is the number of different exercises, 0 for many.
func (s *sequence) size() int {
	if s.task.exercises() >= manyExercises {
		return 0
	}
	for index := 0; s.round == 0; index++ {
		s.at(index)
	}
	return s.round
}

// exercises is how many different exercises there are, manyExercises for more.
func (t *Task) exercises() int {
	if t.name == Reverse {
		return min(t.options.Max-shorterMin(t.options.Max)+1, manyExercises)
	}
	// Of n numbers out of r there are C(r+n-1, n) lists without order.
	r := t.options.Max - 9
	lists, all := float64(r), 0.0
	for n := 2; n <= t.options.Count; n++ {
		lists *= float64(r+n-1) / float64(n)
		if all += lists; all >= manyExercises {
			return manyExercises
		}
	}
	return int(all)
}
