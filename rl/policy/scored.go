package policy

import (
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// What classifiers and reward models on a language model share: a linear layer without bias, the score layer, reads the
// state of the last token, as transformers' …ForSequenceClassification has it.

// scoreWeight is what transformers calls the layer.
const scoreWeight = "score.weight"

// lastStates are the states of the last token of each sequence, [S, H]. What neighbours begin with is computed once.
func (p *CausalLM) lastStates(s *torch.Scope, sequences [][]int32, how torch.Pass) torch.Tensor {
	rows := make([]int64, len(sequences))
	begin := 0
	for i, ids := range sequences {
		begin += len(ids)
		rows[i] = int64(begin - 1)
	}
	packed, rows := p.pack(sequences, rows, how)
	how.Rows = rows
	states, _ := s.Hidden(p.model.Model, packed, how)
	return states
}

// prefix is what stands before the decoder's layers in the names of its modules: "model.".
func (p *CausalLM) prefix() string {
	first, _, _ := strings.Cut(p.model.Config.Linears()[0].Name, ".")
	return first + "."
}

// saveScored writes the adapter as that of a sequence classifier, with the score layer as a whole.
func (p *CausalLM) saveScored(dir string, score safetensors.Tensor) error {
	c := p.adapter.config
	c.TaskType, c.Prefix, c.ModulesToSave = lora.SequenceClassification, p.prefix(), []string{"score"}
	var pairs []lora.Pair
	for _, l := range p.adapter.layers {
		pair, err := l.pair()
		if err != nil {
			return err
		}
		pair.Module = strings.TrimPrefix(pair.Module, c.Prefix)
		pairs = append(pairs, pair)
	}
	return lora.Save(dir, c, pairs, []safetensors.Tensor{score})
}

// attachScored puts on the adapter of a sequence classifier's parts.
func (p *CausalLM) attachScored(dir string, config lora.Config, pairs []lora.Pair) error {
	if config.TaskType != lora.SequenceClassification {
		return fmt.Errorf("%s: task_type is %s: it is no sequence classifier, which has %s", dir, config.TaskType, lora.SequenceClassification)
	}
	shapes := map[string][2]int{}
	for _, linear := range p.model.Config.Linears() {
		shapes[strings.TrimPrefix(linear.Name, config.Prefix)] = [2]int{linear.Out, linear.In}
	}
	if err := config.Fits(pairs, shapes); err != nil {
		return fmt.Errorf("%s does not fit %s: %w", dir, p.model.Dir, err)
	}
	for i := range pairs {
		pairs[i].Module = config.Prefix + pairs[i].Module
	}
	config.Prefix, config.ModulesToSave = "", nil
	p.adapter.config = config
	return p.adapter.attach(p.model.Model, p.model.Config.Linears(), pairs)
}
