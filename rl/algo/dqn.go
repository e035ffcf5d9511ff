package algo

import (
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// DQN is deep Q-learning (Mnih et al. 2015) of labels, on choices sampled from a replay buffer. The value of a label a
// for a text x is read off the policy and its value head,
//
//	Q(x, a) = V(x) + τ·log π(a|x)          so that π = softmax(Q/τ) (Nachum et al. 2017, equation 10)
//
// An episode is one choice with the reward r, so the target is r itself:
//
//	L = mean h(Q(x, a) − r)
//
// with Huber's h(d) = ½d² up to |d| = 1 and |d| − ½ beyond.
type DQN struct {
	Temperature float64 `option:"q_temperature" default:"0.1" range:"(0,)" help:"the policy is softmax(Q / q_temperature)"`
}

func init() {
	Register(Definition{Name: "dqn", Help: "deep Q-learning from a replay buffer, for labels", Labels: true, New: func() Algorithm { return &DQN{} }})
}

// Check implements Algorithm.
func (a *DQN) Check(int) error { return nil }

// Needs implements Algorithm.
func (a *DQN) Needs() Needs {
	return Needs{Rewards: true, Replay: true, Repeats: true, Values: true, SharedValues: true}
}

// Prepare implements Algorithm: the reward of each choice becomes its Return.
func (a *DQN) Prepare(step *rl.Step) error {
	sum := 0.0
	for _, x := range step.Samples {
		x.Return = []float32{float32(x.Reward())}
		x.Fill(0)
		sum += x.Reward()
	}
	step.Figures.Mean("q_target", sum, float64(len(step.Samples)))
	return nil
}

// Loss implements Algorithm.
func (a *DQN) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	q := s.Add(b.Value, s.Scale(b.LogProbs, a.Temperature))
	loss := s.Scale(s.Sum(huber(s, s.Sub(q, b.Return))), 1/float64(b.Actions))
	b.Note(s, "td_loss", loss)
	b.Note(s, "q_values", s.Scale(s.Sum(q), 1/float64(b.Actions)))
	return loss
}

// huber is ½d² up to |d| = 1 and |d| − ½ beyond, elementwise.
func huber(s *torch.Scope, d torch.Tensor) torch.Tensor {
	size := s.Maximum(d, s.Neg(d))
	near := s.Clamp(size, 0, 1)
	return s.Add(s.Scale(s.Mul(near, near), 0.5), s.Sub(size, near))
}
