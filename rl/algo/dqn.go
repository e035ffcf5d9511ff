package algo

import (
	"fmt"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// DQN is deep Q-learning of labels (Mnih et al. 2015; double: van Hasselt et al. 2016; n steps: Hessel et al. 2018,
// section 3) on transitions out of a replay buffer. What an action is worth is read off the policy and its value head,
//
//	Q(x, a) = V(x) + τ·log π(a|x)          so that π = softmax(Q/τ) (Nachum et al. 2017, equation 10)
//
// and with the n rewards of a transition from x to x', the target network Q⁻ and a* = argmax Q(x', ·), without Double
// argmax Q⁻(x', ·),
//
//	y = Σ γᵏ r_k + γⁿ·Q⁻(x', a*)          L = mean h(Q(x, a) − y)
//
// with Huber's h(d) = ½d² up to |d| = 1 and |d| − ½ beyond. Where the episode has ended, y is the sum of the rewards: with
// episodes of one step DQN is regression of Q on the reward of the chosen label, and the target network has no say.
// What Double and Ahead call the policy is the policy as it is at the beginning of a step.
type DQN struct {
	Double      bool    `option:"double_dqn" default:"true" needs:"episodes" help:"the policy chooses the label whose worth the target network tells"`
	Temperature float64 `option:"q_temperature" default:"0.1" range:"(0,)" help:"the policy is softmax(Q / q_temperature): how sure it is of a difference in reward"`
	TargetEvery int     `option:"target_every" default:"10" range:"[1,)" needs:"episodes" help:"steps after which the target network becomes a copy of the policy"`
}

func init() {
	Register(Definition{Name: "dqn", Help: "deep Q-learning from a replay buffer, for labels", Labels: true,
		New: func() Algorithm { return &DQN{Double: true, Temperature: 0.1, TargetEvery: 10} }})
}

// Check implements Algorithm.
func (a *DQN) Check(int) error {
	if !(a.Temperature > 0) || a.TargetEvery < 1 {
		return fmt.Errorf("temperature %v of Q, a target network of every %d steps: want the first above 0 and the second at least 1", a.Temperature, a.TargetEvery)
	}
	return nil
}

// Needs implements Algorithm.
func (a *DQN) Needs() Needs {
	return Needs{Rewards: true, Repeats: true, Values: true, Target: a.TargetEvery}
}

// Prepare implements Algorithm: the target y of each transition becomes its Return.
func (a *DQN) Prepare(step *rl.Step) error {
	sum := 0.0
	for _, x := range step.Samples {
		y := x.Reward()
		if x.Ahead != nil {
			y += x.Discount * a.worth(x.Ahead)
		}
		x.Return = []float32{float32(y)}
		x.Fill(0)
		sum += y
	}
	step.Figures.Mean("q_target", sum, float64(len(step.Samples)))
	return nil
}

// worth is Q⁻(x', a*).
func (a *DQN) worth(ahead *rl.Ahead) float64 {
	chooses := ahead.Target
	if a.Double {
		chooses = ahead.Online
	}
	best := slices.Index(chooses, slices.Max(chooses))
	return float64(ahead.Value) + a.Temperature*float64(ahead.Target[best])
}

// Loss implements Algorithm.
func (a *DQN) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	q := s.Add(b.Value, s.Scale(b.LogProbs, a.Temperature))
	loss := s.Scale(s.Sum(huber(s, s.Sub(q, b.Return))), 1/float64(b.Actions))
	b.Note(s, "td_loss", loss)
	b.Note(s, "q_values", s.Scale(s.Sum(q), 1/float64(b.Actions)))
	return loss
}

// huber is ½d² up to |d| = 1 and |d| − ½ beyond, of each d.
func huber(s *torch.Scope, d torch.Tensor) torch.Tensor {
	size := s.Maximum(d, s.Neg(d))
	near := s.Clamp(size, 0, 1)
	return s.Add(s.Scale(s.Mul(near, near), 0.5), s.Sub(size, near))
}
