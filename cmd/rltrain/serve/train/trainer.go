// Package train serves the Tinker API: clients of a server train LoRA adapters on its model, and sample from them. Requests
// for tensors run on the server's thread between its steps of generation; the base weights are there once.
package train

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/serve"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl/policy"
)

// Config configures a trainer.
type Config struct {
	Name     string        // of the base model
	Dir      string        // of runs and their checkpoints
	Resident int           // training runs in memory; idle ones beyond wait on disk
	Adapters int           // snapshots that can sample without being loaded again
	Patience time.Duration // of a request for a result that is not there yet; 0 = 20 s
	Logf     func(format string, args ...any)
}

// Limits.
const (
	longestBody   = 64 << 20
	longestOrder  = 1 << 20
	mostPending   = 512 << 20 // bytes of waiting examples
	mostAhead     = 4096      // requests of a run that may wait
	mostSessions  = 4096
	mostRank      = 1024
	mostSamples   = 128
	mostSnapshots = 8 // unnamed ones of a run
	partTokens    = 4096
	partBytes     = 4 << 30 // of activations
)

// alpha is lora_alpha of all adapters, as in Thinking Machines' service.
const alpha = 32

// Trainer serves the API. New adds its routes to a server.
type Trainer struct {
	server *serve.Server
	base   *policy.CausalLM
	config Config

	secret  [32]byte // signs links
	futures *futures
	pending atomic.Int64 // bytes of waiting examples
	running context.Context
	stop    func()
	ending  <-chan struct{} // closed when the server should stop
	workers sync.WaitGroup

	lock      sync.Mutex
	sessions  map[string]*session
	runs      map[string]*run
	samplers  map[string]*sampler
	loaded    map[string]*snapshot // by folder
	unwritten map[string]error     // why a folder of a snapshot has no files
	clock     uint64               // orders the uses of runs and snapshots

	kept *kept // used only on the server's thread; nil = none

	figures struct{ steps, tokens, evictions atomic.Int64 }
}

// New creates a trainer on a server's model, p. Call it on the thread of the server, which stops when ctx ends.
func New(ctx context.Context, s *serve.Server, p *policy.CausalLM, c Config) (*Trainer, error) {
	if p.Adapted() || p.Full() || p.Note() != "" {
		return nil, fmt.Errorf("%s has an adapter; training needs a base model: write one with rltrain merge", p.BaseModel)
	}
	if c.Patience == 0 {
		c.Patience = 20 * time.Second
	}
	t := &Trainer{server: s, base: p, config: c, futures: newFutures(), sessions: map[string]*session{}, runs: map[string]*run{}, samplers: map[string]*sampler{}, loaded: map[string]*snapshot{}, unwritten: map[string]error{}, ending: ctx.Done()}
	t.running, t.stop = context.WithCancel(context.Background())
	_, _ = rand.Read(t.secret[:]) // never fails
	if err := t.find(); err != nil {
		return nil, err
	}
	s.AllowSigned(t.signed)
	t.routes()
	s.AddMetrics(t.metrics)
	s.BeforeStop(t.drain)
	return t, nil
}

// find reads the runs of earlier servers.
func (t *Trainer) find() error {
	if err := os.MkdirAll(t.config.Dir, 0o755); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(t.config.Dir, "*", runFile))
	if err != nil {
		return err
	}
	for _, path := range found {
		r := &run{trainer: t, dir: filepath.Dir(path), waiting: map[int]*work{}}
		if err := files.LoadJSON(path, &r.Run); err != nil {
			return err
		}
		r.lost = !files.Exist(r.dir, liveFolder)
		r.used = r.Created
		if err := os.RemoveAll(filepath.Join(r.dir, unnamedFolder)); err != nil {
			return err
		}
		if !r.lost {
			var state struct {
				Steps int       `json:"optimizer_steps"`
				State liveState `json:"state"`
			}
			if err := files.LoadJSON(filepath.Join(r.dir, liveFolder, "state.json"), &state); err != nil {
				return err
			}
			r.next = state.State.Next
		}
		t.runs[r.ID] = r
	}
	return nil
}

// drain waits for the requests that run; those that wait for their turn do not begin any more.
func (t *Trainer) drain(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.workers.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Close saves the runs in memory and frees them. Call it after Serve, on its thread.
func (t *Trainer) Close() {
	t.stop()
	t.workers.Wait()
	for _, r := range t.runs {
		if r.policy == nil {
			continue
		}
		if err := r.leave(); err != nil {
			t.config.Logf("run %s is lost: %v", r.ID, err)
		}
		r.free()
	}
}

// part is how many tokens a forward pass may have.
func (t *Trainer) part() int {
	return int(min(partTokens, max(1, partBytes/t.base.ActivationBytes(false))))
}

// tick is the next value of the clock; the lock is held.
func (t *Trainer) tick() uint64 {
	t.clock++
	return t.clock
}

func (t *Trainer) metrics(one func(kind, name, help string, value any)) {
	t.lock.Lock()
	sessions, runs, samplers := len(t.sessions), len(t.runs), len(t.samplers)
	t.lock.Unlock()
	resident := 0 // /metrics has just been on the thread, which changes policies
	for _, r := range t.allRuns() {
		if r.resident.Load() {
			resident++
		}
	}
	one("gauge", "train_sessions", "sessions of training clients", sessions)
	one("gauge", "train_runs", "training runs", runs)
	one("gauge", "train_runs_resident", "training runs in memory", resident)
	one("gauge", "train_samplers", "sampling sessions", samplers)
	one("gauge", "train_pending_bytes", "bytes of examples that wait for training", t.pending.Load())
	one("counter", "train_steps_total", "optimizer steps", t.figures.steps.Load())
	one("counter", "train_tokens_total", "tokens of forward passes for training", t.figures.tokens.Load())
	one("counter", "train_evictions_total", "runs moved to disk", t.figures.evictions.Load())
}

// known checks that ids are tokens.
func (t *Trainer) known(field string, ids []int32) error {
	for _, id := range ids {
		if id < 0 || int(id) >= t.base.VocabSize() {
			return fmt.Errorf("%s: %d is not a token id between 0 and %d", field, id, t.base.VocabSize()-1)
		}
	}
	return nil
}

// within checks that a number of a request is in a range.
func within(field string, x, low, high float64) error {
	if !(x >= low && x <= high) || math.IsInf(x, 0) {
		return fmt.Errorf("%s %v is out of range; it must be %v to %v", field, x, low, high)
	}
	return nil
}
