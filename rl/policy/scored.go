package policy

import (
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// Classifiers and reward models on a language model have a score layer, a linear layer without bias that reads the state
// of the last token, as transformers' …ForSequenceClassification has it.

// scoreWeight is what transformers calls the layer.
const scoreWeight = "score.weight"

// lastStates are the states of the last token of each sequence, [S, H]. The common beginning of neighbours is computed once.
func (p *CausalLM) lastStates(s *torch.Scope, sequences [][]int32, how torch.Pass) torch.Tensor {
	rows := make([]int64, len(sequences))
	begin := 0
	for i, ids := range sequences {
		begin += len(ids)
		rows[i] = int64(begin - 1)
	}
	return p.states(s, sequences, rows, how)
}

// saveScored writes the adapter as that of a sequence classifier, with the score layer.
func (p *CausalLM) saveScored(dir string, score []safetensors.Tensor) error {
	first, _, _ := strings.Cut(p.config.Linears()[0].Name, ".")
	c := p.adapter.config
	c.TaskType, c.Prefix, c.ModulesToSave = lora.SequenceClassification, first+".", []string{"score"}
	pairs, err := p.adapter.pairs()
	if err != nil {
		return err
	}
	for i := range pairs {
		pairs[i].Module = strings.TrimPrefix(pairs[i].Module, c.Prefix)
	}
	return lora.Save(dir, c, pairs, score)
}

// attachScored puts the adapter of a sequence classifier on the model.
func (p *CausalLM) attachScored(a savedAdapter) error {
	c := a.config
	if c.TaskType != lora.SequenceClassification {
		return fmt.Errorf("%s: task_type is %s; a sequence classifier has %s", a.dir, c.TaskType, lora.SequenceClassification)
	}
	if err := a.fits(p.config, c.Prefix, p.dir); err != nil {
		return err
	}
	for i := range a.pairs {
		a.pairs[i].Module = c.Prefix + a.pairs[i].Module
	}
	c.Prefix, c.ModulesToSave = "", nil
	return p.attach(c, a.pairs)
}
