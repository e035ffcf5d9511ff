package train

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rltrain/rltrain/cmd/rltrain/serve"
	"github.com/rltrain/rltrain/internal/tinker"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// sampler is a sampling session: the base model, or the weights of a folder.
type sampler struct {
	id   string
	path string // of the checkpoint; "" for none
	dir  string // "" for the base model
	gone bool   // its weights had no name and were replaced by newer ones
}

// snapshot is a folder's adapter that can sample.
type snapshot struct {
	adapter *serve.Adapter
	users   int  // requests that sample
	ended   bool // closes after the last of them
	stamp   uint64
}

// borrow loads the adapter of a folder; nil is the base model. It must run within Ask.
func (t *Trainer) borrow(dir string) (*snapshot, error) {
	if dir == "" {
		return nil, nil
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	s := t.loaded[dir]
	if s == nil {
		if err := t.unwritten[dir]; err != nil {
			return nil, serve.Refuse(http.StatusNotFound, "sampling_session_id", "these weights are gone: others took their place in memory, and the server could not write them to disk; free some space and save the weights again: %v", err)
		}
		p, err := t.base.WithAdapter(dir)
		if err != nil {
			return nil, err
		}
		adapter, err := t.server.OpenAdapter(p)
		if err != nil {
			return nil, err
		}
		s = &snapshot{adapter: adapter}
		t.loaded[dir] = s
	}
	s.users++
	s.stamp = t.tick()
	t.shrink()
	return s, nil
}

// shrink closes the idle adapters that were used least recently until few enough are loaded; the lock is held.
func (t *Trainer) shrink() {
	for len(t.loaded) > t.config.Adapters {
		oldest := ""
		for dir, s := range t.loaded {
			if s.users == 0 && (oldest == "" || s.stamp < t.loaded[oldest].stamp) {
				oldest = dir
			}
		}
		if oldest == "" {
			return
		}
		t.server.CloseAdapter(t.loaded[oldest].adapter)
		delete(t.loaded, oldest)
	}
}

// written remembers whether the files of a folder could not be written.
func (t *Trainer) written(dir string, err error) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if delete(t.unwritten, dir); err != nil {
		t.unwritten[dir] = err
	}
}

func (t *Trainer) giveBack(s *snapshot) {
	if s == nil {
		return
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	if s.users--; s.users == 0 && s.ended {
		t.server.CloseAdapter(s.adapter)
	}
	t.shrink()
}

// forget removes the adapter of a folder once nothing samples from it, so that the folder can get other weights.
func (t *Trainer) forget(dir string) {
	t.lock.Lock()
	defer t.lock.Unlock()
	s := t.loaded[dir]
	if s == nil {
		return
	}
	delete(t.loaded, dir)
	if s.ended = true; s.users == 0 {
		t.server.CloseAdapter(s.adapter)
	}
}

// publish makes a sampling session with the weights of a run as they are now. The run keeps the newest of them. They can sample at
// once: their files, for later when others have taken their place in memory, are written meanwhile.
func (r *run) publish(ctx context.Context, seq int) (tinker.Outcome, error) {
	t := r.trainer
	s := &sampler{id: fmt.Sprintf("%s:sample:%d", r.Session, seq)}
	s.dir = filepath.Join(r.dir, unnamedFolder, newID()) // seq may come again
	var pairs lora.Adapter
	var old []*sampler
	live := &snapshot{users: 1} // the writer
	if err := r.ask(ctx, func() (err error) {
		var frozen *policy.CausalLM
		if pairs, frozen, err = r.policy.Snapshot(); err != nil {
			return err
		}
		if live.adapter, err = t.server.OpenAdapter(frozen); err != nil {
			return err
		}
		r.snapshots = append(r.snapshots, s)
		n := max(0, len(r.snapshots)-mostSnapshots)
		old, r.snapshots = r.snapshots[:n:n], r.snapshots[n:]
		t.lock.Lock()
		defer t.lock.Unlock()
		t.samplers[s.id], t.loaded[s.dir], live.stamp = s, live, t.tick()
		for _, s := range old {
			s.gone = true
		}
		return nil
	}); err != nil {
		return nil, err
	}
	t.workers.Go(func() {
		err := lora.Save(s.dir, pairs.Config, pairs.Pairs, nil)
		if err != nil {
			t.config.Logf("writing a snapshot: %v", err)
		}
		t.written(s.dir, err)
		t.giveBack(live)
		for _, s := range old {
			t.forget(s.dir)
			t.written(s.dir, nil)
			if err := os.RemoveAll(s.dir); err != nil {
				t.config.Logf("removing an old snapshot: %v", err)
			}
		}
	})
	return tinker.Reply{"type": "save_weights_for_sampler", "sampling_session_id": s.id}, nil
}

// sampleOrder asks for completions.
type sampleOrder struct {
	Samples   *int         `json:"num_samples"`
	Prompt    tinker.Input `json:"prompt"`
	Sampling  sampling     `json:"sampling_params"`
	BaseModel string       `json:"base_model"`
	Path      string       `json:"model_path"`
	Session   string       `json:"sampling_session_id"`
	Seq       *int64       `json:"seq_id"`
	LogProbs  *bool        `json:"prompt_logprobs"`
	Top       int          `json:"topk_prompt_logprobs"`

	// Not supported.
	TopSampled int             `json:"topk_sample_logprobs"`
	Targets    json.RawMessage `json:"target_prompt_logprobs"`
	Others     int             `json:"prompt_alt_tokens_k"`
	Last       *int            `json:"prompt_logprobs_last_n"`
	Stability  bool            `json:"record_stability_info"`
}

type sampling struct {
	MaxTokens   *int            `json:"max_tokens"`
	Seed        *json.Number    `json:"seed"`
	Stop        json.RawMessage `json:"stop"`
	Temperature *float64        `json:"temperature"`
	TopK        *int            `json:"top_k"`
	TopP        *float64        `json:"top_p"`
}

func or[T any](value *T, otherwise T) T {
	if value == nil {
		return otherwise
	}
	return *value
}

// mostTop is the largest number of likely tokens in place of each.
const mostTop = 20

// options checks a request and converts its settings.
func (o *sampleOrder) options(t *Trainer) (g policy.GenerateOptions, err error) {
	for _, unsupported := range []struct {
		name string
		used bool
	}{
		{"topk_sample_logprobs", o.TopSampled != 0}, {"target_prompt_logprobs", len(o.Targets) > 0 && string(o.Targets) != "null"},
		{"prompt_alt_tokens_k", o.Others != 0}, {"prompt_logprobs_last_n", o.Last != nil}, {"record_stability_info", o.Stability},
	} {
		if unsupported.used {
			return g, fmt.Errorf("%s is not supported", unsupported.name)
		}
	}
	p := o.Sampling
	g = policy.GenerateOptions{
		Samples: or(o.Samples, 1), MaxNew: or(p.MaxTokens, t.base.MaxLength()-len(o.Prompt.Tokens)), Special: true,
		Sampling: torch.Sampling{Temperature: or(p.Temperature, 1), TopK: max(0, or(p.TopK, -1)), TopP: or(p.TopP, 1), RepetitionPenalty: 1},
	}
	if err := errors.Join(
		t.known("prompt", o.Prompt.Tokens), within("num_samples", float64(g.Samples), 1, mostSamples), within("temperature", g.Sampling.Temperature, 0, 100),
		within("top_k", float64(or(p.TopK, -1)), -1, 1<<30), within("top_p", g.Sampling.TopP, 1e-9, 1), within("topk_prompt_logprobs", float64(o.Top), 0, mostTop),
	); err != nil {
		return g, err
	}
	if n, room := len(o.Prompt.Tokens), t.base.MaxLength()-len(o.Prompt.Tokens); n == 0 || g.MaxNew < 1 || g.MaxNew > room {
		return g, fmt.Errorf("max_tokens %d after a prompt of %d tokens is out of range; the model has %d positions, and neither may be 0", g.MaxNew, n, t.base.MaxLength())
	}
	if g.Stop, g.StopIDs, err = stops(p.Stop); err == nil {
		err = t.known("stop", g.StopIDs)
	}
	if err != nil {
		return g, err
	}
	if p.Seed == nil {
		var random [8]byte
		_, _ = rand.Read(random[:]) // never fails
		g.Seed = binary.LittleEndian.Uint64(random[:])
		return g, nil
	}
	if seed, err := p.Seed.Int64(); err == nil {
		g.Seed = uint64(seed)
	} else if g.Seed, err = strconv.ParseUint(p.Seed.String(), 10, 64); err != nil {
		return g, fmt.Errorf("seed %.40s is not a whole number of 64 bits", *p.Seed)
	}
	return g, nil
}

// stops reads a text, a list of texts, or a list of tokens that end a completion.
func stops(raw json.RawMessage) (texts []string, ids []int32, err error) {
	var one string
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, nil, nil
	case json.Unmarshal(raw, &one) == nil:
		texts = []string{one}
	case json.Unmarshal(raw, &texts) == nil:
	default:
		texts = nil
		if json.Unmarshal(raw, &ids) != nil {
			return nil, nil, errors.New("stop is not a string, a list of strings or a list of token ids")
		}
	}
	if len(texts)+len(ids) == 0 {
		return nil, nil, errors.New("stop is an empty list: completions that go on after the end of the text are not supported")
	}
	if len(texts) > 16 || len(ids) > 1024 {
		return nil, nil, errors.New("stop has more than 16 strings or 1024 tokens")
	}
	for _, text := range texts {
		if text == "" || len(text) > 1024 {
			return nil, nil, errors.New("a stop string is empty or longer than 1024 bytes")
		}
	}
	return texts, ids, nil
}

// folderOf is the folder of the weights that a request samples from; "" is the base model.
func (t *Trainer) folderOf(o *sampleOrder) (string, error) {
	if o.Session != "" {
		t.lock.Lock()
		defer t.lock.Unlock()
		s := t.samplers[o.Session]
		switch {
		case s == nil:
			return "", serve.Refuse(http.StatusNotFound, "sampling_session_id", "sampling session %.200q not found", o.Session)
		case s.gone:
			return "", serve.Refuse(http.StatusNotFound, "sampling_session_id", "the weights of sampling session %.200q are gone: the server keeps the %d newest of a model without a name; save them with one", o.Session, mostSnapshots)
		}
		return s.dir, nil
	}
	if o.Path != "" {
		c, err := t.at(o.Path)
		if err != nil {
			return "", err
		}
		return c.dir(), nil
	}
	return "", t.serves(o.BaseModel)
}

// sample queues a request for completions and returns its id.
func (t *Trainer) sample(ctx context.Context, o *sampleOrder) (id string, samples int, err error) {
	if err := t.server.Stopping(); err != nil {
		return "", 0, err
	}
	g, err := o.options(t)
	if err != nil {
		return "", 0, serve.Refuse(http.StatusBadRequest, "", "%v", err)
	}
	dir, err := t.folderOf(o)
	if err != nil {
		return "", 0, err
	}
	id = "sample-" + newID()
	if o.Session != "" && o.Seq != nil {
		id = fmt.Sprintf("%s:%d", o.Session, *o.Seq)
	}
	fut, fresh := t.futures.open(id)
	if !fresh {
		return id, g.Samples, nil
	}
	var with *snapshot
	var adapter *serve.Adapter
	err = t.server.Ask(ctx, func() (err error) {
		with, err = t.borrow(dir)
		return err
	})
	var wait func(context.Context) ([]policy.Completion, error)
	if err == nil {
		if with != nil {
			adapter = with.adapter
		}
		if wait, err = t.server.Generate(adapter, o.Prompt.Tokens, g); err != nil {
			t.giveBack(with)
		}
	}
	if err != nil {
		t.futures.drop(fut)
		return "", 0, err
	}
	t.workers.Go(func() {
		defer t.giveBack(with)
		result, err := t.completed(o, adapter, wait)
		t.futures.finish(fut, result, err)
	})
	return id, g.Samples, nil
}

// completed waits for completions and evaluates the prompt if the request asks for that.
func (t *Trainer) completed(o *sampleOrder, a *serve.Adapter, wait func(context.Context) ([]policy.Completion, error)) (tinker.Outcome, error) {
	all, err := wait(t.running)
	if err != nil {
		return nil, err
	}
	result := &tinker.SampleResult{Width: o.Top}
	for _, c := range all {
		reason := "stop"
		if c.Reason == torch.ReasonLength {
			reason = "length"
		}
		result.Sequences = append(result.Sequences, tinker.Sequence{Reason: reason, Tokens: c.IDs, LogProbs: c.LogProbs})
	}
	if !or(o.LogProbs, false) && o.Top == 0 {
		return result, nil
	}
	return result, t.server.Ask(t.running, func() error {
		tops, err := t.server.Policy(a).TopLogProbs(t.running, o.Prompt.Tokens, 1, o.Top, 1)
		if err != nil {
			return err
		}
		result.Prompt = []float32{0}
		top := []tinker.Top{{}}
		for _, x := range tops {
			result.Prompt, top = append(result.Prompt, x.LogProb), append(top, tinker.Top{IDs: x.IDs, LogProbs: x.LogProbs})
		}
		if o.Top > 0 {
			result.Top = top
		}
		return nil
	})
}
