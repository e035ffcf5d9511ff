package policy

import (
	"errors"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// A RewardModel is trained as policies are. Its samples have one action each, which nothing reads: an answer is judged
// as a whole.

// Forward implements Policy: the scores of the sequences.
func (m *RewardModel) Forward(s *torch.Scope, b *rl.Batch, pass Pass) Output {
	return Output{Scores: m.scores(s, b.Sequences, pass.Checkpoint)}
}

// Groups implements Policy.
func (m *RewardModel) Groups() []Group {
	if m.causal != nil {
		return append(m.causal.Groups(), Group{Role: Head, Params: []*torch.Var{m.causal.weight}, Decay: true})
	}
	return m.encoder.Groups()
}

// Params implements run.Weights.
func (m *RewardModel) Params() []*torch.Var {
	if m.causal != nil {
		return append(m.causal.Params(), m.causal.weight)
	}
	return m.encoder.Params()
}

// Changed implements run.Weights. Nothing keeps a copy of the weights.
func (m *RewardModel) Changed() {}

// AddValueHead implements Policy: a reward model acts on nothing that could have a value.
func (m *RewardModel) AddValueHead() error { return errors.New("a reward model has no value head") }

// Fresh implements Policy. The score layer is part of the model, and the base model has none.
func (m *RewardModel) Fresh() (bool, error) { return false, nil }

// Parameters counts the weights: all of them, and those that training changes.
func (m *RewardModel) Parameters() (total, trainable int64) {
	if m.causal == nil {
		return m.encoder.Parameters()
	}
	total, trainable = m.causal.Parameters()
	width := int64(m.causal.model.Config.Core().HiddenSize)
	return total + width, trainable + width
}

// SaveWeights implements run.Weights: the adapter as PEFT writes that of a sequence classifier, and the score layer.
func (m *RewardModel) SaveWeights(dir string) error {
	if m.causal != nil {
		return m.causal.saveWeights(dir)
	}
	return m.encoder.SaveWeights(dir)
}

// LoadWeights implements run.Weights.
func (m *RewardModel) LoadWeights(dir string) error {
	if m.causal != nil {
		return m.causal.loadWeights(dir)
	}
	return m.encoder.LoadWeights(dir)
}

// Save writes a folder that LoadRewardModel, PEFT and AutoModelForSequenceClassification (of an encoder with pooling
// family, and of a language model) read.
func (m *RewardModel) Save(dir string) error {
	if m.causal != nil {
		return m.causal.save(dir)
	}
	return m.encoder.Save(dir)
}

// Merge writes one full model without an adapter, as Label.Merge does.
func (m *RewardModel) Merge(dir string) error {
	if m.causal != nil {
		return errors.New("merging: the reward model stands on a language model, of which only the adapter is written: PEFT merges it")
	}
	return m.encoder.Merge(dir)
}
