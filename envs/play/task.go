package play

import (
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/program"
)

// task is an environment.
type task struct {
	options *options
	seed    uint64
	asText  bool // for models without a chat template
	line    string
	timeout time.Duration

	lock sync.Mutex
	idle []*program.Program // processes without an episode
}

// Len implements envs.Task: an environment has episodes without end.
func (t *task) Len(envs.Part) int { return 0 }

// Episode implements envs.Task.
func (t *task) Episode(part envs.Part, index int) (envs.Env, error) {
	return &episode{task: t, part: part, seed: t.episodeSeed(part, index)}, nil
}

// episodeSeed is the seed of an episode, below 2^53 so that every JSON reader has it exactly.
func (t *task) episodeSeed(part envs.Part, index int) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", t.seed, part, index)
	return h.Sum64() >> 11
}

// Replies implements envs.Conversing.
func (t *task) Replies() []string { return []string{envs.RoleUser} }

// Waits implements envs.Conversing.
func (t *task) Waits() bool { return true }

// take returns a process for an episode.
func (t *task) take() (*program.Program, error) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if n := len(t.idle); n > 0 {
		p := t.idle[n-1]
		t.idle = t.idle[:n-1]
		return p, nil
	}
	return program.NewSession(t.line, t.timeout, false)
}

// give takes a process back whose episode is over.
func (t *task) give(p *program.Program) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.idle = append(t.idle, p)
}

// Close ends the processes without an episode.
func (t *task) Close() error {
	t.lock.Lock()
	defer t.lock.Unlock()
	for _, p := range t.idle {
		p.Close()
	}
	t.idle = nil
	return nil
}
