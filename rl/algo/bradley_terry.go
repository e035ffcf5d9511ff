package algo

import (
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// BradleyTerry trains a reward model r on preferences (Bradley and Terry 1952; Stiennon et al. 2020, section 3.4). The loss
// is the mean over the units of a minibatch of the mean over the pairs (chosen, rejected) of a unit of
//
//	−log σ(r_c − r_r − m) + c·(r_c + r_r)²
//
// with the margin m by which the pair should differ (Touvron et al. 2023, equation 2), and the weight c that pulls rewards
// to 0 on average (Eisenstein et al. 2023). A unit is a pair, or a ranking with the best response first, all pairs of which
// count (Ouyang et al. 2022, section 3.4).
type BradleyTerry struct {
	Centring float64 `option:"center_rewards_coefficient" default:"0" range:"[0,)" help:"weight of a penalty on the sum of a pair's rewards (0 = off)"`
}

// Check implements Algorithm.
func (a *BradleyTerry) Check(int) error { return nil }

// Needs implements Algorithm.
func (a *BradleyTerry) Needs() Needs { return Needs{Scores: true, Together: true} }

// Prepare implements Algorithm.
func (a *BradleyTerry) Prepare(*rl.Step) error { return nil }

// Loss implements Algorithm.
func (a *BradleyTerry) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	var better, worse []int64
	var margins, weights []float32
	units := float64(len(rl.Units(b.Whole)))
	at := 0
	for _, unit := range rl.Units(b.Part) {
		n := len(unit)
		for i := range n {
			for j := i + 1; j < n; j++ {
				better, worse = append(better, int64(at+i)), append(worse, int64(at+j))
				margins = append(margins, float32(unit[i].Margin))
				weights = append(weights, float32(2/(units*float64(n*(n-1)))))
			}
		}
		at += n
	}
	n := int64(len(better))
	chosen, rejected := s.Rows(b.Scores, s.Ints(better, n)), s.Rows(b.Scores, s.Ints(worse, n))
	difference := s.Sub(chosen, rejected)
	each := s.Neg(s.LogSigmoid(s.Sub(difference, s.Floats(margins, n))))
	if a.Centring > 0 {
		sum := s.Add(chosen, rejected)
		each = s.Add(each, s.Scale(s.Mul(sum, sum), a.Centring))
	}
	loss := s.Sum(s.Mul(each, s.Floats(weights, n)))
	b.Note(s, "loss", loss)
	for i, d := range s.Read(difference) {
		b.Add("margin", float64(d)*float64(weights[i]))
		if d > 0 {
			b.Add("accuracy", float64(weights[i]))
		}
	}
	for _, r := range s.Read(b.Scores) {
		b.Add("mean_reward", float64(r)/float64(len(b.Whole)))
		b.Bounds.Min("min_reward", float64(r))
		b.Bounds.Max("max_reward", float64(r))
	}
	return loss
}
