package shared

import (
	"context"
	"slices"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl/judge"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
)

// Models are those that a list of rewards asks: reward models, and a judge. They compute on a thread of their own, while
// the policy waits for them.
type Models struct {
	ctx     context.Context
	hub     *hub.Client
	thread  *torch.Thread
	critics []*policy.RewardModel
	judge   *policy.Judge
	remote  *judge.Client // instead of judge

	Now time.Time // clock of chat templates; zero means now
}

// NewModels has none yet; ctx is that of downloads.
func NewModels(ctx context.Context, client *hub.Client) *Models {
	return &Models{ctx: ctx, hub: client}
}

func (m *Models) start() {
	if m.thread == nil {
		m.thread = torch.NewThread()
	}
}

// Critic opens the model of a reward.
func (m *Models) Critic(name string) (envs.Critic, error) {
	model, err := policy.LoadRewardModel(m.ctx, m.hub, name)
	if err != nil {
		return nil, err
	}
	model.SetClock(m.Now)
	m.start()
	m.critics = append(m.critics, model)
	return critic{model, m.thread}, nil
}

// OpenJudge opens the judge; dtype is policy.Config's.
func (m *Models) OpenJudge(name, dtype string) error {
	found, err := m.hub.Model(m.ctx, name, hub.Weights)
	if err != nil {
		return err
	}
	m.start()
	m.judge, err = policy.NewJudge(found.Dir, dtype, m.Now)
	return err
}

// UseJudge makes a judge on a server the judge.
func (m *Models) UseJudge(c *judge.Client) { m.remote = c }

// JudgeCount is what the judge has done since the last call; nil if it is not on a server.
func (m *Models) JudgeCount() map[string]int {
	if m.remote == nil {
		return nil
	}
	n := m.remote.Take()
	return map[string]int{"questions": n.Questions, "cached": n.Cached, "requests": n.Requests, "retries": n.Retries, "failures": n.Failures,
		"prompt_tokens": n.PromptTokens, "completion_tokens": n.CompletionTokens}
}

// Choose implements envs.Scorer by the judge, whom rewards ask from many goroutines.
func (m *Models) Choose(ctx context.Context, prompt envs.Observation, choices []string) (shares []float64, err error) {
	if m.remote != nil {
		return m.remote.Choose(ctx, prompt, choices)
	}
	err = m.thread.Do(ctx, func(ctx context.Context) error {
		shares, err = m.judge.Choose(ctx, prompt, choices)
		return err
	})
	return shares, err
}

// Close frees the models.
func (m *Models) Close() {
	if m.thread != nil {
		m.thread.Close()
	}
	for _, model := range m.critics {
		model.Close()
	}
	if m.judge != nil {
		m.judge.Close()
	}
	if m.remote != nil {
		_ = m.remote.Close() // each verdict was written when it was made
	}
	*m = Models{}
}

// critic is a reward model as rewards see it.
type critic struct {
	model  *policy.RewardModel
	thread *torch.Thread
}

// Score implements envs.Critic. What cannot be read has an error, and the rest is scored in one go.
func (m critic) Score(ctx context.Context, completions []envs.Completion) ([]float64, []error) {
	scores, errs := make([]float64, len(completions)), make([]error, len(completions))
	var sequences [][]int32
	var of []int
	for i, c := range completions {
		ids, err := m.model.Encode(policy.Answered(c))
		if err != nil {
			errs[i] = err
			continue
		}
		sequences, of = append(sequences, ids), append(of, i)
	}
	err := m.thread.Do(ctx, func(ctx context.Context) error {
		found, err := m.model.Scores(ctx, sequences)
		for i, score := range found {
			scores[of[i]] = score
		}
		return err
	})
	if err != nil {
		for _, i := range of {
			errs[i] = err
		}
	}
	return scores, errs
}

// Steps implements envs.StepCritic.
func (m critic) Steps(ctx context.Context, completions []envs.Completion, ends [][]int, separator string) (scores [][]float64, errs []error) {
	if err := m.thread.Do(ctx, func(ctx context.Context) error {
		scores, errs = m.model.Steps(ctx, completions, ends, separator)
		return nil
	}); err != nil {
		return make([][]float64, len(completions)), slices.Repeat([]error{err}, len(completions))
	}
	return scores, errs
}
