package play

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
)

// task is the environments of a run.
type task struct {
	seed   uint64
	worlds []*world

	lock   sync.Mutex
	places []place // of the first episodes of a part
	counts []int   // episodes of each environment in places
}

// place is where an episode is: a number of an environment, and how many earlier ones that has.
type place struct{ world, index int }

// Len implements envs.Task: programs have episodes without end, and servers unless they list tasks.
func (t *task) Len(part envs.Part) int {
	if w := t.worlds[0]; len(t.worlds) == 1 && w.tasks != nil {
		return w.tasks.Len(part)
	}
	return 0
}

// Episode implements envs.Task.
func (t *task) Episode(part envs.Part, index int) (envs.Env, error) {
	if index < 0 {
		return nil, fmt.Errorf("episode %d is out of range", index)
	}
	at := t.placed(index)
	w := t.worlds[at.world]
	seed := t.episodeSeed(part, index)
	if w.server == nil {
		return &episode{world: w, game: &programGame{world: w, part: part, seed: seed}}, nil
	}
	data := dataset.Object{{Name: "seed", Value: int64(seed % (1 << 31))}} // what every library of random numbers takes
	if w.tasks != nil {
		if part == envs.Eval && len(t.worlds) > 1 {
			at.index %= w.tasks.Len(part)
		}
		of, err := w.tasks.At(part, at.index)
		if err != nil {
			return nil, err
		}
		data = append(data, w.server.Task(of.part, of.index)...)
	}
	return &episode{world: w, game: &serverGame{world: w, begin: data}}, nil
}

// placed returns where an episode is. After any number of episodes, each environment has its share of them up to one.
func (t *task) placed(index int) place {
	if len(t.worlds) == 1 {
		return place{0, index}
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	if t.counts == nil {
		t.counts = make([]int, len(t.worlds))
	}
	total := 0.0
	for _, w := range t.worlds {
		total += w.weight
	}
	for n := len(t.places); n <= index; n++ {
		next, most := 0, 0.0
		for i, w := range t.worlds {
			if owed := w.weight/total*float64(n+1) - float64(t.counts[i]); i == 0 || owed > most+1e-9 {
				next, most = i, owed
			}
		}
		t.places = append(t.places, place{next, t.counts[next]})
		t.counts[next]++
	}
	return t.places[index]
}

// episodeSeed is the seed of an episode, below 2^53 so that every JSON reader has it exactly.
func (t *task) episodeSeed(part envs.Part, index int) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", t.seed, part, index)
	return h.Sum64() >> 11
}

// MeanReward implements envs.Scoring.
func (t *task) MeanReward() bool { return true }

// Replies implements envs.Conversing.
func (t *task) Replies() (roles []string) {
	for _, w := range t.worlds {
		if !slices.Contains(roles, w.role()) {
			roles = append(roles, w.role())
		}
	}
	return roles
}

// Waits implements envs.Conversing.
func (t *task) Waits() bool { return true }

// Close ends the processes without an episode.
func (t *task) Close() error {
	for _, w := range t.worlds {
		w.lock.Lock()
		for _, p := range w.idle {
			p.Close()
		}
		w.idle = nil
		w.lock.Unlock()
	}
	return nil
}
