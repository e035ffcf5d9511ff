package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// causalScore is a language model whose last state a linear layer without bias reads, as transformers'
// …ForSequenceClassification has it.
type causalScore struct {
	*CausalLM
	weight    *torch.Var // [1, H]
	bias      *torch.Var // [1] of zeros, not trained
	maxLength int        // 0 = as many as the model has positions
}

func newCausalScore(c RewardConfig) (*causalScore, error) {
	if c.R == 0 {
		return nil, errors.New("a reward model on a language model is trained by an adapter")
	}
	p, err := NewToken(TokenConfig{Dir: c.Dir, BaseModel: c.BaseModel, Revision: c.Revision, DType: c.DType, R: c.R, Alpha: c.Alpha, Targets: c.Targets, Seed: c.Seed})
	if err != nil {
		return nil, err
	}
	width := p.model.Config.Core().HiddenSize
	rng, weight := rl.Stream(c.Seed, rl.StreamInit, 1), make([]float32, width)
	for i := range weight {
		weight[i] = float32(rng.NormFloat64() / math.Sqrt(float64(width+1)))
	}
	m, err := p.scored(weight, c.MaxLength)
	if err != nil {
		p.Close()
	}
	return m, err
}

// scored puts a score layer on p.
func (p *CausalLM) scored(weight []float32, maxLength int) (*causalScore, error) {
	m := &causalScore{CausalLM: p, maxLength: maxLength}
	var err error
	if m.weight, err = torch.Parameter(weight, 1, int64(len(weight))); err == nil {
		m.bias, err = torch.Constant([]float32{0}, 1)
	}
	if err != nil {
		torch.CloseAll(m.weight)
		return nil, fmt.Errorf("score layer: %w", err)
	}
	return m, nil
}

// Close frees the model.
func (m *causalScore) Close() {
	torch.CloseAll(m.weight, m.bias)
	m.CausalLM.Close()
}

func (m *causalScore) limit() int {
	if limit := m.MaxLength(); m.maxLength == 0 || m.maxLength > limit {
		return limit
	}
	return m.maxLength
}

// encode is the tokens of a prompt with an answer, as in training on them, one more than limit at most.
func (m *causalScore) encode(prompt, answer chat.Content) ([]int32, error) {
	q, err := m.encodeExample(chat.Example{Format: chat.PromptCompletion, Prompt: prompt, Completion: answer}, EncodeOptions{MaxLength: m.limit()})
	return q.IDs, err
}

// scores are W·h of the last state of each sequence, [S].
func (m *causalScore) scores(s *torch.Scope, sequences [][]int32, checkpoint bool) torch.Tensor {
	states := m.lastStates(s, sequences, torch.Pass{Adapter: true, Checkpoint: checkpoint})
	return s.Squeeze(s.Linear(states, m.weight.T(), m.bias.T()))
}

// saveWeights writes the adapter as that of a sequence classifier, with the score layer as a whole.
func (m *causalScore) saveWeights(dir string) error {
	weight, err := m.weight.Read()
	if err != nil {
		return err
	}
	return m.saveScored(dir, safetensors.FromFloat32s(scoreWeight, []int64{1, int64(len(weight))}, weight))
}

// loadWeights puts back what saveWeights wrote.
func (m *causalScore) loadWeights(dir string) error {
	extra, err := m.adapter.loadScored(dir)
	if err != nil {
		return err
	}
	weight, err := floats(extra, scoreWeight, int64(m.model.Config.Core().HiddenSize))
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return m.weight.Write(weight)
}

// scoreRecord is the content of reward_model.json: what no file of Hugging Face's has room for.
type scoreRecord struct {
	MaxLength int `json:"max_length"`
}

const scoreFile = "reward_model.json"

// save writes the folder: adapter and score layer, config.json of a classifier with one label, the tokenizer's files.
func (m *causalScore) save(dir string) error {
	err := m.saveWeights(dir)
	if err == nil {
		err = files.SaveJSON(filepath.Join(dir, scoreFile), scoreRecord{m.limit()})
	}
	if err == nil {
		err = m.saveConfig(dir)
	}
	if err == nil {
		err = transformers.CopyExtras(dir, m.model.Dir)
	}
	if err != nil {
		return fmt.Errorf("saving the reward model: %w", err)
	}
	return nil
}

// saveConfig copies the model's config.json with one label in it.
func (m *causalScore) saveConfig(dir string) error {
	var raw map[string]json.RawMessage
	if err := files.LoadJSON(filepath.Join(m.model.Dir, "config.json"), &raw); err != nil {
		return err
	}
	config := map[string]any{}
	for key, value := range raw { // as it is written
		config[key] = value
	}
	config["id2label"], config["label2id"] = map[string]string{"0": rewardLabel}, map[string]int{rewardLabel: 0}
	delete(config, "num_labels")
	return files.SaveJSON(filepath.Join(dir, "config.json"), config)
}

// loadCausalScore loads what save wrote, with the base model that its adapter names.
func loadCausalScore(ctx context.Context, client *hub.Client, dir string) (*causalScore, error) {
	config, pairs, extra, err := lora.Load(dir)
	if err != nil {
		return nil, err
	}
	base, err := baseModel(ctx, client, dir, config)
	if err != nil {
		return nil, err
	}
	var record scoreRecord
	if err := files.LoadJSON(filepath.Join(dir, scoreFile), &record); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	p, err := NewToken(TokenConfig{Dir: base.Dir, BaseModel: base.Name, Revision: base.Commit})
	if err != nil {
		return nil, err
	}
	p.adapter.frozen = true
	m, err := p.restored(dir, config, pairs, extra, record.MaxLength)
	if err != nil {
		p.Close()
		return nil, err
	}
	return m, nil
}

// restored is the reward model of an adapter's parts.
func (p *CausalLM) restored(dir string, config lora.Config, pairs []lora.Pair, extra map[string]safetensors.Tensor, maxLength int) (*causalScore, error) {
	weight, err := floats(extra, scoreWeight, int64(p.model.Config.Core().HiddenSize))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if err := p.attachScored(dir, config, pairs); err != nil {
		return nil, err
	}
	return p.scored(weight, maxLength)
}
