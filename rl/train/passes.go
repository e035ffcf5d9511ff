package train

import (
	"errors"
	"fmt"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch"
)

// passes runs forward passes that fit into memory.
type passes struct {
	*ranks
	kept   *kept
	copied *policy.CausalLM // teacher self, unless it has the policy's current weights; else nil

	micro, micros, tokens int // micro-batches and tokens of a step's updates so far; micros is 0 outside of them
}

// kept is a forward pass that scored the first part of a step. The first update has the same weights, so it goes back
// through this pass instead of running another.
type kept struct {
	held  *torch.Held
	part  []*rl.Sample
	batch *rl.Batch
	out   policy.Output
}

// pass is how the policy itself is evaluated.
func (p *passes) pass() policy.Pass {
	return policy.Pass{Values: p.needs.Values, Load: p.config.RouterCoef > 0, EndToEnd: p.needs.SharedValues, Checkpoint: p.config.Checkpoint, Temperature: p.config.Temperature}
}

// minibatches divides samples for a pass over a step.
func (p *passes) minibatches(samples []*rl.Sample, epoch int) [][]*rl.Sample {
	var batches [][]*rl.Sample
	for _, part := range rl.Minibatches(p.config.Seed, p.state.Step, epoch, len(samples), p.config.Minibatches, p.config.MinibatchSize) {
		batch := make([]*rl.Sample, len(part))
		for i, n := range part {
			batch[i] = samples[n]
		}
		batches = append(batches, batch)
	}
	return batches
}

// parts divides a batch for forward passes.
func (p *passes) parts(batch []*rl.Sample) [][]*rl.Sample {
	return rl.Parts(batch, p.needs.Together, p.microTokens())
}

// microTokens is how many tokens a forward pass may have: as configured, or fewer after memory ran out.
func (p *passes) microTokens() int {
	if set := p.config.MicroTokens; p.state.MicroTokens == 0 || set > 0 && set < p.state.MicroTokens {
		return set
	}
	return p.state.MicroTokens
}

// visitor runs a forward pass of a part of a batch.
type visitor func(s *torch.Scope, part []*rl.Sample, b *rl.Batch)

// forward calls visit with each part of a batch.
func (p *passes) forward(mode torch.Mode, batch []*rl.Sample, visit visitor) error {
	if len(batch) == 0 {
		return nil
	}
	for _, part := range p.parts(batch) {
		if err := torch.Do(mode, func(s *torch.Scope) error {
			visit(s, part, rl.NewBatch(part))
			return nil
		}); err != nil {
			return err
		}
		p.tick(part)
	}
	return nil
}

// ask calls visit with each part of a batch, without gradients. After memory ran out it calls visit again.
func (p *passes) ask(batch []*rl.Sample, visit visitor) error {
	return p.withinMemory(func() error { return p.forward(torch.NoGrad, batch, visit) }, batch)
}

// keep runs visit on the first part of a batch, keeps its pass, and returns the number of its samples.
func (p *passes) keep(batch []*rl.Sample, visit func(s *torch.Scope, part []*rl.Sample, out policy.Output)) (n int, err error) {
	p.release()
	k := &kept{part: p.parts(batch)[0]}
	k.held, err = torch.Hold(torch.Train, func(s *torch.Scope) error {
		k.batch = rl.NewBatch(k.part)
		k.out = p.policy.Forward(s, k.batch, p.pass())
		visit(s, k.part, k.out)
		return nil
	})
	if err != nil {
		return 0, err
	}
	p.kept = k
	return len(k.part), nil
}

// takeKept runs visit on the kept pass if samples start with its part, and returns the number of its samples. The pass
// can be taken once.
func (p *passes) takeKept(samples []*rl.Sample, visit func(s *torch.Scope, part []*rl.Sample, b *rl.Batch, out policy.Output)) (int, error) {
	k := p.kept
	defer p.release()
	if k == nil || len(samples) < len(k.part) || samples[0] != k.part[0] {
		return 0, nil
	}
	defer p.tick(k.part)
	return len(k.part), k.held.Do(func(s *torch.Scope) error {
		visit(s, k.part, k.batch, k.out)
		return nil
	})
}

// tick shows that a micro-batch of an update is done.
func (p *passes) tick(part []*rl.Sample) {
	if p.micros > 0 {
		p.micro, p.tokens = p.micro+1, p.tokens+rl.Tokens(part)
		p.hooks.Phases.Within(p.micro, p.micros, p.tokens)
	}
}

// release frees the kept pass.
func (p *passes) release() {
	if p.kept != nil {
		p.kept.held.Close()
		p.kept = nil
	}
}

// withinMemory calls run, which runs passes of batches. Whenever memory runs out it calls run again with passes half as
// large; run itself undoes what an unfinished call left behind.
func (p *passes) withinMemory(run func() error, batches ...[]*rl.Sample) error {
	for {
		err := run()
		if !torch.OutOfMemory(err) {
			return err
		}
		p.release()
		if err := p.halve(err, batches); err != nil {
			return err
		}
	}
}

// halve makes the passes of this run half as large as the largest of batches, or returns an error that says what to do.
func (p *passes) halve(cause error, batches [][]*rl.Sample) error {
	var largest []*rl.Sample
	tokens := 0
	for _, batch := range batches {
		if len(batch) == 0 {
			continue
		}
		for _, part := range p.parts(batch) {
			if n := rl.Tokens(part); n > tokens {
				largest, tokens = part, n
			}
		}
	}
	units := len(largest)
	if p.needs.Together {
		units = len(rl.Units(largest))
	}
	pass := fmt.Sprintf("a forward pass of %s, %s tokens", report.Plural(len(largest), "sample"), report.Count(int64(tokens)))
	switch {
	case units < 2:
		checkpoint := ""
		if !p.config.Checkpoint {
			checkpoint = "set gradient_checkpointing (language models), or "
		}
		return fmt.Errorf("%w in %s, which cannot be divided: %slimit texts to %s tokens, half as long (max_length, max_new_tokens)", cause, pass, checkpoint, report.Count(int64(max(1, tokens/2))))
	case !p.config.OOMRetry:
		return fmt.Errorf("%w in %s: set tokens_per_micro_batch to %d, half of that, or set oom_retry", cause, pass, tokens/2)
	}
	p.state.MicroTokens = tokens / 2
	return p.hooks.Logf("warning: step %d: out of memory in %s (%v); from here on passes have at most %s tokens. Set tokens_per_micro_batch to %d to start so",
		p.state.Step+1, pass, cause, report.Count(int64(p.state.MicroTokens)), p.state.MicroTokens)
}

// explainMemory says what helps if weights and the optimiser's state do not fit.
func (p *passes) explainMemory(cause error) error {
	elements := int64(0)
	for _, v := range p.policy.Params() {
		n, err := v.Elements()
		if err != nil {
			return errors.Join(cause, err)
		}
		elements += n
	}
	bytes, err := p.config.Bytes(p.policy)
	if err != nil {
		return errors.Join(cause, err)
	}
	return fmt.Errorf("%w; gradients and the optimiser's state of %s trained weights take %s bytes: train an adapter, or one of lower rank", cause, report.Count(elements), report.Count(bytes))
}
