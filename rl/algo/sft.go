package algo

import (
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// SFT is supervised fine-tuning: cross-entropy over the actions of a minibatch, tokens or labels,
//
//	L = −(1/M) Σ log π(a|x) + c Σ ‖A‖ + ‖B‖
//
// with the second term over the matrices of the adapter. Dropout acts on the adapter's input only. With Dynamic, each log π is
// multiplied by sg(π), where sg stops the gradient: dynamic fine-tuning, in which unlikely tokens pull less (arXiv 2508.05629).
type SFT struct {
	Dynamic bool
	Smoothing
	// Noise is the α of uniform noise in ±α/√(L·E) on the embeddings of a language model's tokens, of E elements each in a
	// sequence of L (Jain et al. 2023, "NEFTune"); 0 = none.
	Noise            float64
	FeatureAlignment float64 `option:"feature_alignment" default:"0" range:"[0,)" help:"weight of a penalty on the norms of the adapter's matrices (0 = off)"`
}

// Smoothing takes a fraction ε of the target's probability and spreads it over all C tokens or labels, as transformers'
// LabelSmoother does (Szegedy et al. 2016): −log π(a|x) becomes
//
//	−(1−ε)·log π(a|x) − (ε/C) Σ_c log π(c|x)
type Smoothing struct {
	Factor float64 `option:"label_smoothing_factor" default:"0" range:"[0,1)" help:"fraction of the target's probability that is spread evenly over all tokens or labels; evaluations use none"`
}

// Check implements Algorithm.
func (a *SFT) Check(int) error { return nil }

// Needs implements Algorithm.
func (a *SFT) Needs() Needs { return Needs{Dropout: true, Noise: a.Noise} }

// Prepare implements Algorithm.
func (a *SFT) Prepare(*rl.Step) error { return nil }

// Loss implements Algorithm.
func (a *SFT) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	logProbs := b.LogProbs
	if a.Dynamic {
		logProbs = s.Mul(s.Detach(s.Exp(logProbs)), logProbs)
	}
	loss := s.Scale(s.Sum(logProbs), -1/float64(b.Actions))
	if e := a.Factor; e > 0 {
		loss = s.Add(s.Scale(loss, 1-e), b.Uniform(e/float64(b.Actions)))
	}
	b.Note(s, "loss", loss)
	if a.FeatureAlignment > 0 && b.First {
		for _, w := range b.Body {
			loss = s.Add(loss, s.Scale(s.Norm(w), a.FeatureAlignment))
		}
	}
	return loss
}
