package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/intent"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// Files of a saved policy, beside the adapter's and the tokenizer's.
const (
	policyFile = "label_policy.json" // what no file of Hugging Face's has room for
	headFile   = "head.safetensors"  // head.weight [C, H], head.bias [C]; pooling mean
)

// policyRecord is the content of label_policy.json.
type policyRecord struct {
	Pooling   string `json:"pooling"`
	MaxLength int    `json:"max_length"`
	Reward    bool   `json:"reward,omitempty"` // it is a reward model: it has one output, and no labels
	// Prompt is what a language model reads of a text that it scores labels for, with TextMark for the text.
	Prompt envs.Observation `json:"prompt,omitzero"`
}

// rewardLabel is what transformers calls the one output of a reward model.
const rewardLabel = "LABEL_0"

// SaveWeights writes the adapter as PEFT does, and the heads.
func (p *Classifier) SaveWeights(dir string) error {
	head, err := p.headTensors()
	if err != nil {
		return err
	}
	if p.lm != nil {
		if err = p.saveLanguage(dir, head); err == nil {
			err = p.value.save(dir)
		}
		return err
	}
	var extra []safetensors.Tensor
	if p.Pooling == transformers.PoolFamily {
		extra = head
	} else if err := safetensors.Write(filepath.Join(dir, headFile), head, nil); err != nil {
		return err
	}
	if err := p.adapter.save(dir, extra); err != nil {
		return err
	}
	return p.value.save(dir)
}

func (p *Classifier) headTensors() ([]safetensors.Tensor, error) {
	var tensors []safetensors.Tensor
	for _, part := range p.headParts() {
		data, err := (*part.v).Read()
		if err != nil {
			return nil, err
		}
		tensors = append(tensors, safetensors.FromFloat32s(part.name, part.dims, data))
	}
	return tensors, nil
}

// Save writes a folder that LoadLabel, PEFT and (with pooling family) AutoModelForSequenceClassification
// read: adapter, heads, label mappings, config.json and the tokenizer's files.
func (p *Classifier) Save(dir string) error {
	if err := p.SaveWeights(dir); err != nil {
		return fmt.Errorf("saving the policy: %w", err)
	}
	if err := p.saveCommon(dir); err != nil {
		return fmt.Errorf("saving the policy: %w", err)
	}
	return nil
}

func (p *Classifier) saveCommon(dir string) error {
	reward := p.IsReward()
	if !reward {
		if err := intent.WriteMapping(dir, p.Labels); err != nil {
			return err
		}
	}
	if err := files.SaveJSON(filepath.Join(dir, policyFile), policyRecord{p.Pooling, p.MaxLength, reward, p.words.prompt}); err != nil {
		return err
	}
	if err := p.saveConfig(dir); err != nil {
		return err
	}
	return transformers.CopyExtras(dir, p.modelDir())
}

// modelDir is the folder of the base model.
func (p *Classifier) modelDir() string {
	if p.lm != nil {
		return p.lm.model.Dir
	}
	return p.model.Dir
}

// saveConfig copies the model's config.json and changes what changed: the labels.
func (p *Classifier) saveConfig(dir string) error {
	data, err := os.ReadFile(filepath.Join(p.modelDir(), "config.json"))
	if err != nil {
		return err
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(p.modelDir(), "config.json"), err)
	}
	config := map[string]any{}
	for key, value := range raw { // as it is written: transformers tells 2.0 from 2
		config[key] = value
	}
	label2id := map[string]int{}
	for i, label := range p.Labels {
		label2id[label] = i
	}
	config["id2label"], config["label2id"] = p.id2Label(), label2id
	delete(config, "num_labels")
	return files.SaveJSON(filepath.Join(dir, "config.json"), config)
}

// id2Label maps class numbers, in decimal, to labels, as config.json has it.
func (p *Classifier) id2Label() map[string]string {
	names := map[string]string{}
	for i, label := range p.Labels {
		names[strconv.Itoa(i)] = label
	}
	return names
}

// IsLabelFolder tells the folder of a Label from others.
func IsLabelFolder(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, policyFile))
	return err == nil
}

// ReadLabelFolder reads what the folder of a Label says of it beside the model: Labels, Pooling and
// MaxLength. The policy has no weights: nothing can be asked of it,
// and it need not be closed.
func ReadLabelFolder(dir string) (*Classifier, error) {
	var record policyRecord
	if err := files.LoadJSON(filepath.Join(dir, policyFile), &record); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s has no %s: it is not the folder of a trained policy", dir, policyFile)
		}
		return nil, err
	}
	labels := []string{rewardLabel}
	if !record.Reward {
		var err error
		if labels, err = intent.ReadMapping(dir); err != nil {
			return nil, err
		}
	}
	return &Classifier{Labels: labels, Pooling: record.Pooling, MaxLength: record.MaxLength, dir: dir, words: labelWords{prompt: record.Prompt}}, nil
}

// LoadLabel loads what Save wrote, with the base model that its adapter names, or what Merge wrote, to train it further
// or else to use it. model is the folder, or a name as hub.Client.Model takes it. Errors name the file and what is wrong in
// it.
func LoadLabel(ctx context.Context, client *hub.Client, model string, trainable bool) (*Classifier, error) {
	found, err := client.Model(ctx, model, hub.Weights)
	if err != nil {
		return nil, err
	}
	p, err := ReadLabelFolder(found.Dir)
	if err != nil {
		return nil, err
	}
	if p.IsReward() {
		return nil, fmt.Errorf("%s is a reward model, which scores answers and knows no labels", model)
	}
	p.adapter.frozen = !trainable
	return p, p.loaded(ctx, client, found.Dir)
}

// loaded is load that leaves nothing open where it fails.
func (p *Classifier) loaded(ctx context.Context, client *hub.Client, dir string) error {
	err := p.load(ctx, client, dir)
	if err != nil && (p.model != nil || p.lm != nil) {
		p.Close()
	}
	return err
}

func (p *Classifier) load(ctx context.Context, client *hub.Client, dir string) error {
	switch p.Pooling {
	case transformers.PoolMean, transformers.PoolFamily:
	case PoolLast, PoolScore:
		return p.loadLanguage(ctx, client, dir)
	default:
		return fmt.Errorf("%s: pooling is %q, want %q, %q, %q or %q", filepath.Join(dir, policyFile), p.Pooling, transformers.PoolMean, transformers.PoolFamily, PoolLast, PoolScore)
	}
	var pairs []lora.Pair
	var extra map[string]safetensors.Tensor
	modelDir := dir
	merged := false
	if _, err := os.Stat(filepath.Join(dir, lora.ConfigFile)); errors.Is(err, fs.ErrNotExist) {
		merged = true
	} else {
		if p.adapter.config, pairs, extra, err = lora.Load(dir); err != nil {
			return err
		}
		base, err := baseModel(ctx, client, dir, p.adapter.config)
		if err != nil {
			return err
		}
		modelDir = base.Dir
	}
	var err error
	if p.model, err = transformers.Load(modelDir); err != nil {
		return err
	}
	p.BaseModel = p.adapter.config.BaseModel
	if limit := p.model.Config.MaxLength(); p.MaxLength < 1 || p.MaxLength > limit {
		return fmt.Errorf("%s: max_length is %d, the model has %d positions", filepath.Join(dir, policyFile), p.MaxLength, limit)
	}
	if name := p.model.Config.PoolerName(); name != "" && p.Pooling == transformers.PoolFamily && p.model.Pooler == nil {
		return fmt.Errorf("%s has no %s weights, which pooling %q needs", modelDir, name, p.Pooling)
	}
	if !merged {
		shapes := map[string][2]int{}
		for _, linear := range p.model.Config.Linears() {
			shapes[linear.Name] = [2]int{linear.Out, linear.In}
		}
		if err := p.adapter.config.Fits(pairs, shapes); err != nil {
			return fmt.Errorf("%s does not fit %s: %w", dir, modelDir, err)
		}
		if err := p.adapter.attach(p.model.Encoder, p.model.Config.Linears(), pairs); err != nil {
			return err
		}
	}
	heads, err := p.readHeads(dir, extra)
	if err != nil {
		return err
	}
	if err := p.setHeads(heads); err != nil {
		return err
	}
	p.tokenizer, err = tokenizer.Load(dir)
	return err
}

// readHeads reads the classification head of dir, in the order of headParams; extra holds what travelled
// with the adapter.
func (p *Classifier) readHeads(dir string, extra map[string]safetensors.Tensor) ([][]float32, error) {
	width := int64(p.width())
	var heads [][]float32
	var err error
	switch {
	case p.Pooling == transformers.PoolMean:
		var weight, bias []float32
		weight, bias, err = readPair(filepath.Join(dir, headFile), "head.weight", "head.bias", int64(len(p.Labels)), width)
		heads = [][]float32{weight, bias}
	case p.model != nil && p.model.Head != nil && extra == nil:
		heads, err = p.folderHead()
	default:
		for _, part := range p.headParts() {
			data, err := floats(extra, part.name, part.size())
			if err != nil {
				return nil, fmt.Errorf("%s: %w", dir, err)
			}
			heads = append(heads, data)
		}
	}
	if err != nil {
		return nil, err
	}
	return heads, nil
}

func floats(tensors map[string]safetensors.Tensor, name string, count int64) ([]float32, error) {
	t, ok := tensors[name]
	if !ok {
		return nil, fmt.Errorf("tensor %s is missing", name)
	}
	data, err := t.Float32s()
	if err == nil && int64(len(data)) != count {
		err = fmt.Errorf("tensor %s has shape %v, want %d values", name, t.Shape, count)
	}
	return data, err
}

// readPair reads a linear layer's weight [out, in] and bias [out] from a file.
func readPair(path, weightName, biasName string, out, in int64) (weight, bias []float32, err error) {
	file, err := safetensors.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if weight, err = file.Float32s(weightName); err != nil {
		return nil, nil, err
	}
	if bias, err = file.Float32s(biasName); err != nil {
		return nil, nil, err
	}
	if int64(len(weight)) != out*in || int64(len(bias)) != out {
		return nil, nil, fmt.Errorf("%s: a head of %d and %d values, want [%d %d] and [%d]", path, len(weight), len(bias), out, in, out)
	}
	return weight, bias, nil
}

// saveLanguage writes the adapter of a language model: with a head that of a sequence classifier, without one its own.
func (p *Classifier) saveLanguage(dir string, head []safetensors.Tensor) error {
	if p.Pooling == PoolScore {
		return p.lm.adapter.save(dir, nil)
	}
	return p.lm.saveScored(dir, head[0])
}

// LoadWeights puts back what SaveWeights wrote.
func (p *Classifier) LoadWeights(dir string) error {
	load := p.lora().load
	if p.Pooling == PoolLast {
		load = p.lora().loadScored
	}
	extra, err := load(dir)
	if err != nil {
		return err
	}
	heads, err := p.readHeads(dir, extra)
	if err != nil {
		return err
	}
	for i, v := range p.headParams() {
		if err := v.Write(heads[i]); err != nil {
			return fmt.Errorf("%s: head: %w", dir, err)
		}
	}
	return p.value.load(dir)
}
