package algo

import (
	"context"
	"time"

	"rltrain/envs"
	"rltrain/envs/intent"
	"rltrain/rl"
	"rltrain/torch"
)

// benchRate is the learning rate of repeated updates: it only has to keep the numbers ordinary.
const benchRate = 1e-4

// BenchSFT returns one supervised update on all examples, to be repeated: forward, backward, clipping and
// AdamW, as SFT does it between validations. The caller calls end when done.
func BenchSFT(p *LabelPolicy, e Examples) (update func() error, end func(), err error) {
	schedule, err := rl.NewSchedule("constant", 1, 0)
	if err != nil {
		return nil, nil, err
	}
	t := &sft{policy: p, train: e, schedule: schedule,
		config:    SFTConfig{LearningRate: benchRate, HeadLearningRate: benchRate, MaxGradNorm: 1},
		optimizer: torch.NewAdamW(torch.AdamEps, torch.ParamGroup{Params: p.adapterParams()}, torch.ParamGroup{Params: p.headParams()})}
	all := make([]int, e.Len())
	for i := range all {
		all[i] = i
	}
	return func() error { return t.update(all) }, t.optimizer.Close, nil
}

// BenchTokenSFT returns one supervised update on all sequences in one pass, to be repeated: forward, backward,
// clipping and AdamW, as TokenSFT does it between validations. The caller calls end when done.
func BenchTokenSFT(p *TokenPolicy, sequences []Sequence, checkpoint bool) (update func() error, end func(), err error) {
	schedule, err := rl.NewSchedule("constant", 1, 0)
	if err != nil {
		return nil, nil, err
	}
	t := &tokenSFT{policy: p, train: sequences, schedule: schedule,
		config: TokenSFTConfig{LearningRate: benchRate, MaxGradNorm: 1, Checkpoint: checkpoint}}
	if t.optimizer, err = p.Optimizer(0); err != nil {
		return nil, nil, err
	}
	all := make([]int, len(sequences))
	for i := range all {
		all[i] = i
	}
	return func() error { return t.update(all) }, t.optimizer.Close, nil
}

// TokenRLTimes are the parts of a step of TokenRL.
type TokenRLTimes struct{ Generation, Environment, LogProbs, Update time.Duration }

// BenchTokenRL returns one step of TokenRL, to be repeated: a rollout, its advantages and the updates, without
// report and evaluation. No token ends a completion, so that all steps are equally long. The caller calls end
// when done.
func BenchTokenRL(p *TokenPolicy, task envs.Task, c TokenRLConfig, now func() time.Time) (step func(ctx context.Context) (TokenRLTimes, error), end func(), err error) {
	p.eos = nil
	c.Steps, c.LearningRate, c.Schedule, c.MaxGradNorm = 1, benchRate, "constant", 1
	t, err := newTokenRL(p, task, c, Hooks{Now: now})
	if err != nil {
		return nil, nil, err
	}
	if t.sampler, err = p.NewSampler(c.PromptsPerStep * c.SamplesPerPrompt); err != nil {
		t.close()
		return nil, nil, err
	}
	return func(ctx context.Context) (TokenRLTimes, error) {
		r, err := t.collect(ctx)
		if err != nil {
			return TokenRLTimes{}, err
		}
		began := now()
		f, err := t.learn(r)
		if err != nil {
			return TokenRLTimes{}, err
		}
		t.state.Step, t.state.Cursor = t.state.Step+1, r.cursor
		return TokenRLTimes{Generation: r.generation, Environment: r.environment, LogProbs: f.scoring, Update: now().Sub(began) - f.scoring}, nil
	}, t.close, nil
}

// BenchPPO returns a rollout of all examples and updates of the policy on all of it, to be repeated, as PPO
// does it between validations. The caller calls end when done.
func BenchPPO(p *LabelPolicy, e Examples, updates int) (round func() error, end func(), err error) {
	rewards, err := intent.ParseRewards("accuracy", p.Labels)
	if err != nil {
		return nil, nil, err
	}
	t := newPPO(p, e, rewards, PPOConfig{RolloutSize: e.Len(), BatchSize: e.Len(), LearningRate: benchRate, ClipLow: 0.2, ClipHigh: 0.2,
		ValueCoef: 0.5, EntropyCoef: 0.01, Whiten: true, MaxGradNorm: 1}, Hooks{})
	return func() error {
		if err := t.collect(context.Background()); err != nil {
			return err
		}
		for epoch := range updates {
			if _, err := t.update(t.minibatches(epoch)[0]); err != nil {
				return err
			}
		}
		t.state.Episode++
		return nil
	}, t.optimizer.Close, nil
}
