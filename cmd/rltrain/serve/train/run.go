package train

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/serve"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/tinker"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// Files and folders of a run.
const (
	runFile       = "run.json"
	liveFolder    = "live"    // the state of a run that is not in memory
	unnamedFolder = "unnamed" // snapshots without a name, which end with the server
)

// Run describes an adapter that clients train.
type Run struct {
	ID        string         `json:"id"`
	Session   string         `json:"session"`
	BaseModel string         `json:"base_model"`
	Rank      int            `json:"rank"`
	Seed      uint64         `json:"seed"`
	Attention bool           `json:"train_attn"`
	MLP       bool           `json:"train_mlp"`
	Metadata  map[string]any `json:"user_metadata,omitempty"`
	Created   time.Time      `json:"created"`
}

// run is a training run: an adapter, its optimizer, and the requests that wait for it.
type run struct {
	Run
	trainer *Trainer
	dir     string

	lock    sync.Mutex
	next    int           // sequence number of the request to run next
	waiting map[int]*work // by sequence number
	busy    bool          // a worker runs requests
	lost    bool          // an earlier server ended without saving it
	used    time.Time
	stamp   uint64 // of the last use, by the trainer's clock

	resident atomic.Bool // policy is not nil

	// Used only on the server's thread.
	policy    *policy.CausalLM // nil on disk
	optimizer *torch.Optimizer
	gradient  bool // there is one
	partial   bool // a request has added only a part of its gradient
	snapshots []*sampler
}

// work is a request that waits for its turn.
type work struct {
	future *future
	bytes  int64
	do     func(ctx context.Context) (tinker.Outcome, error)
}

// folder is the folder of a run: its ID without characters that paths cannot have everywhere.
func (t *Trainer) folder(id string) string {
	return filepath.Join(t.config.Dir, strings.ReplaceAll(id, ":", "_"))
}

// open makes a run, which exists from now on. A repeated request finds the same one.
func (t *Trainer) open(description Run) (r *run, err error) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if r, ok := t.runs[description.ID]; ok {
		return r, nil
	}
	description.Created = time.Now().UTC()
	r = &run{Run: description, trainer: t, dir: t.folder(description.ID), waiting: map[int]*work{}, used: time.Now()}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, err
	}
	if err := files.SaveJSON(filepath.Join(r.dir, runFile), r.Run); err != nil {
		return nil, err
	}
	t.runs[r.ID] = r
	return r, nil
}

// run returns a run that can be trained.
func (t *Trainer) run(id string) (*run, error) {
	t.lock.Lock()
	r := t.runs[id]
	t.lock.Unlock()
	switch {
	case r == nil:
		return nil, serve.Refuse(http.StatusNotFound, "model_id", "model %.200q not found", id)
	case r.lost:
		return nil, serve.Refuse(http.StatusNotFound, "model_id", "the server ended without saving model %s; create a model from one of its checkpoints", r.ID)
	}
	return r, nil
}

func (t *Trainer) allRuns() (all []*run) {
	t.lock.Lock()
	defer t.lock.Unlock()
	for _, r := range t.runs {
		all = append(all, r)
	}
	return all
}

// submit queues a request and returns its id. Requests run in the order of their sequence numbers, whenever they arrive; one
// without a number comes after all others. A repeated one finds the first.
func (r *run) submit(seq *int, bytes int64, do func(ctx context.Context) (tinker.Outcome, error)) (id string, err error) {
	if err := r.trainer.server.Stopping(); err != nil {
		return "", err
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	at := r.next
	if seq != nil {
		at = *seq
	} else {
		for n := range r.waiting {
			at = max(at, n+1)
		}
		if r.busy && at == r.next { // the one that runs has this number
			at++
		}
	}
	id = fmt.Sprintf("%s:%d", r.ID, at)
	_, waits := r.waiting[at]
	switch {
	case at < 0 || at > r.next+mostAhead:
		return "", serve.Refuse(http.StatusBadRequest, "seq_id", "seq_id %d is out of range; request %d is next", at, r.next)
	case at < r.next || waits || r.trainer.futures.get(id) != nil:
		return id, nil
	case r.trainer.pending.Add(bytes) > mostPending:
		r.trainer.pending.Add(-bytes)
		return "", serve.Refuse(http.StatusTooManyRequests, "", "too many examples are waiting; try again later")
	}
	w := &work{bytes: bytes, do: do}
	w.future, _ = r.trainer.futures.open(id)
	r.waiting[at] = w
	r.used = time.Now()
	if !r.busy && r.waiting[r.next] != nil {
		r.busy = true
		r.trainer.workers.Go(r.work)
	}
	return id, nil
}

// work runs the requests whose turn it is.
func (r *run) work() {
	t := r.trainer
	for {
		r.lock.Lock()
		w := r.waiting[r.next]
		if w == nil || t.server.Stopping() != nil {
			r.busy = false
			r.lock.Unlock()
			return
		}
		delete(r.waiting, r.next)
		r.lock.Unlock()

		outcome, err := w.do(t.running)
		t.pending.Add(-w.bytes)
		stopped := err != nil && t.server.Stopping() != nil
		if stopped {
			t.futures.drop(w.future)
		}
		t.futures.finish(w.future, outcome, err)
		r.lock.Lock()
		if !stopped {
			r.next++
		}
		r.used = time.Now()
		r.lock.Unlock()
		if stopped {
			return // busy stays true: nothing runs any more
		}
	}
}

// ask runs f on the server's thread with the run in memory.
func (r *run) ask(ctx context.Context, f func() error) error {
	return r.trainer.server.Ask(ctx, func() error {
		if err := r.enter(); err != nil {
			return err
		}
		return f()
	})
}

// enter brings the run into memory and moves another one to disk if there are too many.
func (r *run) enter() (err error) {
	t := r.trainer
	t.lock.Lock()
	r.stamp = t.tick()
	t.lock.Unlock()
	if r.policy != nil {
		return nil
	}
	if err := t.evict(); err != nil {
		return err
	}
	c := policy.Config{R: r.Rank, Alpha: alpha, Seed: r.Seed, Targets: t.base.Targets(r.Attention, r.MLP), BaseModel: t.base.BaseModel}
	if r.policy, err = t.base.WithNewAdapter(c); err != nil {
		return err
	}
	r.resident.Store(true)
	r.reset()
	if files.Exist(r.dir, liveFolder) {
		if err = r.restoreLive(); err != nil {
			r.free()
		}
	}
	return err
}

// reset makes a new optimizer.
func (r *run) reset() {
	if r.optimizer != nil {
		r.optimizer.Close()
	}
	r.optimizer = torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: r.policy.Params()})
}

// free releases the memory of a run.
func (r *run) free() {
	if k := r.trainer.kept; k != nil && k.run == r {
		r.trainer.release()
	}
	r.optimizer.Close()
	r.policy.Close()
	r.optimizer, r.policy, r.gradient = nil, nil, false
	r.resident.Store(false)
}

// evict moves the idle run that was used least recently to disk if there is no room for another one.
func (t *Trainer) evict() error {
	var oldest *run
	resident := 0
	for _, r := range t.allRuns() {
		if r.policy == nil {
			continue
		}
		resident++
		r.lock.Lock()
		if !r.busy && (oldest == nil || r.stamp < oldest.stamp) {
			oldest = r
		}
		r.lock.Unlock()
	}
	if resident < t.config.Resident || oldest == nil {
		return nil
	}
	if err := oldest.leave(); err != nil {
		return fmt.Errorf("moving model %s to disk: %w", oldest.ID, err)
	}
	oldest.free()
	t.figures.evictions.Add(1)
	return nil
}

// leave saves the state of a run in memory to its folder.
func (r *run) leave() error {
	if r.partial {
		return errors.New("a request was interrupted")
	}
	return outfile.Folder(filepath.Join(r.dir, liveFolder), func(dir string) error {
		r.lock.Lock()
		next := r.next
		r.lock.Unlock()
		if err := r.state(&liveState{Next: next, Gradient: r.gradient}).Save(dir); err != nil {
			return err
		}
		if !r.gradient {
			return nil
		}
		return saveGradient(dir, r.policy.Params())
	})
}
