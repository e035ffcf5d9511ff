package tinker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/internal/tinker"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// mostInFlight is how many prompts the service completes at a time.
const mostInFlight = 64

// session samples from weights that do not change any more.
type session struct {
	id      string
	of      uint64 // Policy.version
	number  int    // of sessions so far
	request int
}

// Sampler has the service generate with a policy's weights.
type Sampler struct{ policy *Policy }

// NewSampler makes a sampler and returns the mean difference, in nats, between the log-probabilities of the service's sampler
// and those of its training.
func (p *Policy) NewSampler(ctx context.Context) (m *Sampler, gap float64, err error) {
	m = &Sampler{p}
	o := policy.GenerateOptions{Samples: 2, MaxNew: 16, Sampling: torch.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1}}
	var prompts [][]int32
	for i := range 4 {
		prompts = append(prompts, p.probe(i))
	}
	b, said := &rl.Batch{}, []float32{}
	err = m.Generate(ctx, prompts, o, func(i int, completions []policy.Completion) error {
		for _, c := range completions {
			begin := 0
			for _, ids := range b.Sequences {
				begin += len(ids)
			}
			b.Sequences, b.Lengths = append(b.Sequences, slices.Concat(prompts[i], c.IDs)), append(b.Lengths, len(c.IDs))
			for j, id := range c.IDs {
				b.Rows, b.Actions, said = append(b.Rows, int64(begin+len(prompts[i])+j-1)), append(b.Actions, int64(id)), append(said, c.BehaviorLogProbs[j])
			}
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	_, logProbs, err := p.pass(b, false)
	for i, l := range logProbs {
		gap += math.Abs(float64(l)-float64(said[i])) / float64(len(said))
	}
	return m, gap, err
}

// probe is a few arbitrary tokens after the start tokens.
func (p *Policy) probe(i int) []int32 {
	rng := rl.Stream(9, uint64(i))
	ids := p.text.Tokenizer.Opening()
	for range 8 {
		ids = append(ids, int32(rng.IntN(p.text.VocabSize())))
	}
	return ids
}

// Policy returns the policy's tokenizer and templates.
func (m *Sampler) Policy() *policy.CausalLM { return m.policy.text }

// publish makes the current weights those that are sampled from.
func (p *Policy) publish(ctx context.Context) error {
	s := &p.sampler
	if s.id != "" && s.of == p.version {
		return nil
	}
	var made struct {
		ID string `json:"sampling_session_id"`
	}
	s.number++
	if err := p.model.do(ctx, "save_weights_for_sampler", map[string]any{"sampling_session_seq_id": s.number}, &made); err != nil {
		return err
	}
	s.id, s.of, s.request = made.ID, p.version, 0
	return nil
}

// Generate samples completions with the current weights, as policy.Sampler.Generate does.
func (m *Sampler) Generate(ctx context.Context, prompts [][]int32, o policy.GenerateOptions, done func(prompt int, completions []policy.Completion) error) error {
	p, limit := m.policy, m.policy.text.MaxLength()
	for i, ids := range prompts {
		if len(ids) == 0 || len(ids)+o.MaxNew > limit {
			return fmt.Errorf("generating: prompt %d has %d tokens, which with %d new ones exceed the context of %d tokens", i+1, len(ids), o.MaxNew, limit)
		}
	}
	if o.Sampling.MinP != 0 || cmp.Or(o.Sampling.RepetitionPenalty, 1) != 1 {
		return errors.New("generating: a service samples without min_p and repetition_penalty")
	}
	if err := p.publish(ctx); err != nil {
		return fmt.Errorf("generating: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	type answer struct {
		completions []policy.Completion
		err         error
	}
	answers, places := make([]chan answer, len(prompts)), make(chan struct{}, mostInFlight)
	for i := range answers {
		answers[i] = make(chan answer, 1)
	}
	first := p.sampler.request
	p.sampler.request += len(prompts)
	go func() {
		for i := range prompts {
			places <- struct{}{}
			go func() {
				defer func() { <-places }()
				completions, err := m.one(ctx, prompts[i], first+i, i, o)
				answers[i] <- answer{completions, err}
			}()
		}
	}()
	received := 0
	defer func() {
		stop()
		for ; received < len(prompts); received++ {
			<-answers[received] // no request is running after the return
		}
	}()
	sampled := 0
	for i := range prompts {
		a := <-answers[i]
		received++
		if a.err != nil {
			return fmt.Errorf("generating: prompt %d: %w", i+1, a.err)
		}
		p.spent.Prompt += len(prompts[i])
		for _, c := range a.completions {
			sampled += len(c.IDs)
			p.spent.Sampled += len(c.IDs)
		}
		run.Working(ctx, received*o.Samples, len(prompts)*o.Samples, sampled)
		if err := done(i, a.completions); err != nil {
			return err
		}
	}
	return nil
}

// one samples the completions of a prompt, the i-th of those with options o.
func (m *Sampler) one(ctx context.Context, prompt []int32, number, i int, o policy.GenerateOptions) ([]policy.Completion, error) {
	p := m.policy
	o, stream := o.Prompt(i)
	ends := append(p.text.EOS(), o.StopIDs...)
	params := map[string]any{
		"max_tokens": o.MaxNew, "seed": rl.Stream(o.Seed, stream).Uint64() >> 34, "temperature": o.Sampling.Temperature, "top_p": cmp.Or(o.Sampling.TopP, 1), "stop": ends,
		"top_k": cmp.Or(o.Sampling.TopK, -1),
	}
	if len(o.Stop) > 0 { // the service stops at its own end tokens too
		params["stop"] = o.Stop
	}
	body := map[string]any{
		"type": "sample", "num_samples": o.Samples, "prompt": map[string]any{"chunks": []any{map[string]any{"type": "encoded_text", "tokens": prompt}}},
		"sampling_params": params, "sampling_session_id": p.sampler.id, "seq_id": number,
	}
	if o.Base {
		delete(body, "sampling_session_id")
		delete(body, "seq_id")
		body["base_model"] = p.name
	}
	var at promise
	if err := p.service.post(ctx, "asample", body, &at, true); err != nil {
		return nil, err
	}
	var r tinker.SampleResult
	if err := p.service.result(ctx, at.ID, &r); err != nil {
		return nil, err
	}
	if len(r.Sequences) != o.Samples {
		return nil, fmt.Errorf("the service returned %d completions, want %d", len(r.Sequences), o.Samples)
	}
	all := make([]policy.Completion, o.Samples)
	for j, s := range r.Sequences {
		var err error
		if all[j], err = p.completion(s, o, ends); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// completion checks a sequence and decodes it.
func (p *Policy) completion(s tinker.Sequence, o policy.GenerateOptions, ends []int32) (c policy.Completion, err error) {
	n := len(s.Tokens)
	switch {
	case n == 0 || n > o.MaxNew || len(s.LogProbs) != n:
		return c, fmt.Errorf("a completion has %d tokens and %d log-probabilities; want 1 to %d and as many", n, len(s.LogProbs), o.MaxNew)
	case s.Reason != "stop" && s.Reason != "length":
		return c, fmt.Errorf("a completion ended because of %.40q", s.Reason)
	}
	for _, id := range s.Tokens {
		if id < 0 || int(id) >= p.text.VocabSize() {
			return c, fmt.Errorf("token %d is out of range for the vocabulary of %d; the service has another model", id, p.text.VocabSize())
		}
	}
	c = policy.Completion{IDs: s.Tokens, LogProbs: s.LogProbs, BehaviorLogProbs: s.LogProbs, Reason: torch.ReasonLength}
	if o.Sampling.Temperature == 0 {
		c.BehaviorLogProbs = make([]float32, n)
	}
	text, ended := s.Tokens, slices.Contains(ends, s.Tokens[n-1])
	if ended {
		text = text[:n-1]
	}
	if c.Text, err = p.text.Tokenizer.Decode(text, !o.Special); err != nil {
		return c, err
	}
	if s.Reason == "length" {
		return c, nil
	}
	c.Reason = torch.ReasonStop
	switch at, _ := policy.FirstStop(c.Text, o.Stop); {
	case at >= 0:
		c.Text = c.Text[:at]
	case !ended:
		return c, errors.New("a completion stopped before its end token or stop string; the service must include it")
	}
	return c, nil
}
