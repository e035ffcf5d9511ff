package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// GenerateOptions say how prompts are completed.
type GenerateOptions struct {
	Samples  int   // completions per prompt
	MaxNew   int   // tokens of a completion at most
	Limits   []int // of each prompt, in place of MaxNew and at most that; nil = MaxNew
	Sampling torch.Sampling
	Stop     []string // strings that end a completion, not included in its text
	StopIDs  []int32  // tokens that end a completion, in addition to those that end a text
	Seed     uint64
	Streams  []uint64 // numbers of the prompts' random streams; nil = 0, 1, ...
	Base     bool     // without the adapter
	Adapter  int      // number of an adapter from Load; 0 = the policy's own
	Special  bool     // include the text of special tokens, except of the one that ends a completion
	// OnText receives the text of a completion as it becomes final.
	OnText func(prompt, sample int, text string)
}

// Prompt returns the options of prompt i alone, and the number of its random stream.
func (o GenerateOptions) Prompt(i int) (one GenerateOptions, stream uint64) {
	stream = uint64(i)
	if o.Streams != nil {
		stream = o.Streams[i]
	}
	if o.Limits != nil {
		o.MaxNew = o.Limits[i]
	}
	return o, stream
}

// Completion is what the policy generated after a prompt.
type Completion struct {
	Text             string
	IDs              []int32   // with the token that ended it
	LogProbs         []float32 // log π of each token, of the logits as they are
	BehaviorLogProbs []float32 // log-probability of each token in the distribution it was sampled from; 0 if greedy
	// Routes are the experts of the prompt's tokens and of all but the last of IDs, see rl.Routes; nil without experts.
	Routes rl.Routes `json:",omitempty"`
	Reason torch.Reason
}

// Sampler generates completions with a policy. On the CPU it holds a packed copy of the weights.
type Sampler struct {
	policy   *CausalLM
	merged   *mergedCopy // with DoRA what the engine generates from, else nil
	engine   *torch.Engine
	slots    int
	version  uint64 // of the weights that the engine has
	requests map[int64]*request
	loaded   []bool // whether adapter i+1 is in use, see Load
}

// NewSampler makes a sampler that runs slots completions at a time; it must be closed before the policy.
func (p *CausalLM) NewSampler(slots int) (*Sampler, error) {
	m := &Sampler{policy: p, slots: slots, version: p.version, requests: map[int64]*request{}}
	core := p.core
	var err error
	if p.adapter.config.DoRA {
		if m.merged, err = newMergedCopy(p.model, p.adapter.layers); err != nil {
			return nil, fmt.Errorf("generating: %w", err)
		}
		core = m.merged.model.Model
	}
	if m.engine, err = torch.NewEngine(core, torch.EngineConfig{Slots: slots, EOS: p.eos}); err != nil {
		if m.merged != nil {
			m.merged.close()
		}
		return nil, fmt.Errorf("generating: %w", err)
	}
	return m, nil
}

// Close frees the sampler.
func (m *Sampler) Close() {
	m.engine.Close()
	if m.merged != nil {
		m.merged.close()
	}
}

// Policy is the policy that generates.
func (m *Sampler) Policy() *CausalLM { return m.policy }

// refresh takes over the policy's current weights.
func (m *Sampler) refresh() error {
	if m.version == m.policy.version {
		return nil
	}
	if m.merged != nil {
		if err := m.merged.refresh(); err != nil {
			return fmt.Errorf("generating: %w", err)
		}
	}
	if err := m.engine.Refresh(); err != nil {
		return fmt.Errorf("generating: %w", err)
	}
	m.version = m.policy.version
	return nil
}

// request is a prompt whose completions are in progress.
type request struct {
	options GenerateOptions
	samples []*running
	open    int // samples that have not ended
	hear    func(Progress)
}

// running is a completion in progress.
type running struct {
	Completion
	decoder  *tokenizer.Decoder
	text     strings.Builder
	reported int // bytes of the text that were heard
	done     bool
}

// Progress is what a step adds to a sample: text and tokens that are final.
type Progress struct {
	Sample     int
	Text       string      // since the last time
	Completion *Completion // all tokens so far; Text and Reason once Done
	Done       bool
	Err        error // ErrNotFinite: the sample ended unfinished; others continue
}

// ErrNotFinite says that the policy has no probabilities for a next token.
var ErrNotFinite = errors.New("the model's logits are not finite")

// Submit queues the completions of a prompt, which Step generates; hear is called for each new token. stream takes the place of
// the options' Streams, and OnText is not called. Errors name what is out of range.
func (m *Sampler) Submit(prompt []int32, stream uint64, o GenerateOptions, hear func(Progress)) (id int64, err error) {
	if err := m.refresh(); err != nil {
		return 0, err
	}
	adapter := 1 + o.Adapter
	if o.Base {
		adapter = 0
	}
	if m.merged != nil && adapter != 1 {
		return 0, errors.New("generating: a DoRA adapter that is trained is in the weights, so nothing but the policy generates from them")
	}
	id, err = m.engine.Submit(torch.Request{
		Prompt: prompt, Samples: o.Samples, MaxNew: o.MaxNew, Sampling: o.Sampling, Seed: o.Seed, Stream: stream, Adapter: adapter,
	})
	if err != nil {
		return 0, err
	}
	w := &request{options: o, samples: make([]*running, o.Samples), open: o.Samples, hear: hear}
	for s := range w.samples {
		w.samples[s] = &running{decoder: m.policy.Tokenizer.NewDecoder(!o.Special)}
	}
	m.requests[id] = w
	return id, nil
}

// Unfinished is the number of submitted samples that have not ended.
func (m *Sampler) Unfinished() int { return m.engine.Unfinished() }

// Step generates the next token of each running sample, and reads as much of new prompts as fits. After an error the sampler
// can only be closed.
func (m *Sampler) Step() error {
	events, err := m.engine.Step(max(torch.StepTokens(), m.slots))
	if err != nil {
		return fmt.Errorf("generating: %w", err)
	}
	for _, e := range events {
		w, ours := m.requests[e.Request]
		if !ours || w.samples[e.Sample].done {
			continue // a stop string or a Cancel has ended it
		}
		if err := m.take(w, e); err != nil {
			return err
		}
	}
	return nil
}

// Cancel ends the unfinished samples of a request: hear is not called again, and their slots are free at once.
func (m *Sampler) Cancel(id int64) error {
	w, ours := m.requests[id]
	if !ours {
		return nil
	}
	delete(m.requests, id)
	for s, r := range w.samples {
		if r.done {
			continue
		}
		if err := m.engine.Cancel(id, s); err != nil {
			return err
		}
	}
	return nil
}

// Generate completes prompts of token ids. It calls done for the prompts in their order, as soon as their completions are
// there. Completion (i, j) is a function of the weights, the prompt, the options and the seed alone.
func (m *Sampler) Generate(ctx context.Context, prompts [][]int32, o GenerateOptions, done func(prompt int, completions []Completion) error) (err error) {
	limit := m.policy.MaxLength()
	for i, ids := range prompts {
		if len(ids) == 0 {
			return fmt.Errorf("generating: prompt %d is empty", i+1)
		}
		if len(ids)+o.MaxNew > limit {
			return fmt.Errorf("generating: prompt %d has %d tokens, and %d new ones exceed the model's %d positions", i+1, len(ids), o.MaxNew, limit)
		}
	}
	open := make([]int, len(prompts)) // running completions of each prompt
	finished := make([][]Completion, len(prompts))
	var ids []int64
	var broken error
	ended, sampled := 0, 0 // completions and tokens
	defer func() {
		if err != nil {
			for _, id := range ids {
				err = cmp.Or(err, m.Cancel(id))
			}
		}
	}()
	for next := 0; next < len(prompts); {
		if err := ctx.Err(); err != nil {
			return err
		}
		// Enough for every slot and the next; the rest wait here, not in the core.
		for len(ids) < len(prompts) && m.engine.Unfinished() < 2*m.slots {
			i := len(ids)
			one, stream := o.Prompt(i)
			open[i], finished[i] = o.Samples, make([]Completion, o.Samples)
			id, err := m.Submit(prompts[i], stream, one, func(h Progress) {
				if o.OnText != nil && h.Text != "" {
					o.OnText(i, h.Sample, h.Text)
				}
				if h.Err != nil {
					broken = cmp.Or(broken, fmt.Errorf("generating: prompt %d: %w", i+1, h.Err))
				}
				sampled++
				if h.Done {
					ended++
					finished[i][h.Sample] = *h.Completion
					open[i]--
				}
			})
			if err != nil {
				return fmt.Errorf("prompt %d: %w", i+1, err)
			}
			ids = append(ids, id)
		}
		if err := cmp.Or(m.Step(), broken); err != nil {
			return err
		}
		run.Working(ctx, ended, len(prompts)*o.Samples, sampled)
		for next < len(ids) && open[next] == 0 {
			if err := done(next, finished[next]); err != nil {
				return err
			}
			finished[next] = nil
			next++
		}
	}
	return nil
}

// take adds a token to a completion.
func (m *Sampler) take(w *request, e torch.Event) error {
	o, r := w.options, w.samples[e.Sample]
	if e.Reason == torch.ReasonNotFinite {
		r.done, r.Reason = true, e.Reason
		w.ended(m, e.Request)
		w.hear(Progress{Sample: e.Sample, Completion: &r.Completion, Done: true, Err: ErrNotFinite})
		return nil
	}
	r.IDs, r.LogProbs, r.BehaviorLogProbs = append(r.IDs, e.Token), append(r.LogProbs, e.Raw), append(r.BehaviorLogProbs, e.LogProb)
	r.Routes = append(r.Routes, e.Routes...)
	stops := slices.Contains(o.StopIDs, e.Token)
	ends := e.Done || stops
	if !stops && !(o.Special && e.Reason == torch.ReasonStop) {
		text, err := r.decoder.Push(e.Token)
		if err != nil {
			return err
		}
		r.text.WriteString(text)
	}
	if ends {
		rest, err := r.decoder.Flush()
		if err != nil {
			return err
		}
		r.text.WriteString(rest)
		if r.done, r.Reason = true, e.Reason; stops {
			r.Reason = torch.ReasonStop
		}
	}
	whole := r.text.String()
	if at, _ := FirstStop(whole, o.Stop); at >= 0 {
		whole = whole[:at]
		r.text.Reset()
		r.text.WriteString(whole)
		r.done, r.Reason = true, torch.ReasonStop
	}
	if r.done && !e.Done {
		if err := m.engine.Cancel(e.Request, e.Sample); err != nil {
			return err
		}
	}
	// Text that may begin a stop string is not final.
	final := len(whole)
	if r.done {
		r.Text = whole
		w.ended(m, e.Request)
	} else {
		final -= heldBack(whole, o.Stop)
	}
	h := Progress{Sample: e.Sample, Completion: &r.Completion, Done: r.done}
	if final > r.reported {
		h.Text = whole[r.reported:final]
		r.reported = final
	}
	w.hear(h)
	return nil
}

// ended removes the prompt after its last sample.
func (w *request) ended(m *Sampler, id int64) {
	if w.open--; w.open == 0 {
		delete(m.requests, id)
	}
}

// FirstStop is the place of the first stop string in text, −1 if there is none, and the longest stop string there.
func FirstStop(text string, stop []string) (at int, found string) {
	at = -1
	for _, s := range stop {
		i := strings.Index(text, s)
		if i >= 0 && (at < 0 || i < at || i == at && len(s) > len(found)) {
			at, found = i, s
		}
	}
	return at, found
}

// heldBack is the length of the longest suffix of text that begins a stop string.
func heldBack(text string, stop []string) int {
	longest := 0
	for _, s := range stop {
		for n := min(len(s)-1, len(text)); n > longest; n-- {
			if strings.HasSuffix(text, s[:n]) {
				longest = n
			}
		}
	}
	return longest
}
