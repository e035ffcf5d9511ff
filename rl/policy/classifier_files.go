package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// Files of a saved policy, apart from the adapter's and the tokenizer's. The two JSON files have what no file of Hugging Face's
// has room for.
const (
	policyFile = "label_policy.json"
	rewardFile = "reward_model.json" // of a reward model on a language model
	headFile   = "head.safetensors"  // head.weight [C, H], head.bias [C]; pooling mean
)

// policyRecord is the content of label_policy.json.
type policyRecord struct {
	Pooling   string `json:"pooling"`
	MaxLength int    `json:"max_length"`
	Reward    bool   `json:"reward,omitempty"` // a reward model, with one output and no labels
	// Prompt is what a language model reads when it scores labels, with TextMark for the text.
	Prompt envs.Observation `json:"prompt,omitzero"`
}

// rewardRecord is the content of reward_model.json.
type rewardRecord struct {
	MaxLength int `json:"max_length"`
}

// rewardLabel is transformers' name of the one output of a reward model.
const rewardLabel = "LABEL_0"

// SaveWeights implements run.Weights: the adapter as PEFT writes it, and the heads.
func (p *Classifier) SaveWeights(dir string) error {
	head, err := p.head.tensors()
	if err != nil {
		return err
	}
	switch p.Pooling {
	case PoolLast:
		err = p.lm.saveScored(dir, head)
	case transformers.PoolMean:
		if err = safetensors.Write(filepath.Join(dir, headFile), head, nil); err == nil {
			err = p.adapter.save(dir, nil)
		}
	default:
		err = p.adapter.save(dir, head)
	}
	if err != nil {
		return err
	}
	return p.value.save(dir)
}

// LoadWeights implements run.Weights: it reads what SaveWeights wrote.
func (p *Classifier) LoadWeights(dir string) error {
	extra, err := p.adapter.load(dir, p.Pooling == PoolLast)
	if err != nil {
		return err
	}
	values, err := p.readHead(dir, extra)
	if err != nil {
		return err
	}
	if err := p.head.write(values); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return p.value.load(dir)
}

// readHead reads the values of the classification head in dir; extra are the tensors saved with the adapter.
func (p *Classifier) readHead(dir string, extra map[string]safetensors.Tensor) ([][]float32, error) {
	switch {
	case p.Pooling == transformers.PoolMean:
		return p.head.readFile(filepath.Join(dir, headFile))
	case p.model != nil && p.model.Head != nil && extra == nil:
		return p.folderHead()
	case (p.Pooling == PoolLast || p.Pooling == PoolStep) && extra == nil: // merged
		file, err := safetensors.OpenModel(dir)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		values, err := p.head.values(file.Float32s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		return values, nil
	}
	values, err := p.head.from(extra)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return values, nil
}

// Save writes a folder that LoadClassifier or LoadRewardModel, PEFT and (except with pooling mean) transformers'
// AutoModelForSequenceClassification read: adapter, heads, label mappings, config.json and the tokenizer's files.
func (p *Classifier) Save(dir string) error {
	err := p.SaveWeights(dir)
	if err == nil {
		err = p.saveCommon(dir, func(map[string]any) {})
	}
	if err != nil {
		return fmt.Errorf("saving the policy: %w", err)
	}
	return nil
}

// saveCommon writes what both an adapter and a merged encoder have beside their weights; change is for config.json.
func (p *Classifier) saveCommon(dir string, change func(config map[string]any)) error {
	if err := p.saveRecords(dir); err != nil {
		return err
	}
	if err := p.saveConfig(dir, p.dir, change); err != nil {
		return err
	}
	return transformers.CopyExtras(dir, p.dir)
}

// saveRecords writes the files of a policy that only rltrain knows.
func (p *Classifier) saveRecords(dir string) error {
	if !p.IsReward() {
		if err := WriteMapping(dir, p.Labels); err != nil {
			return err
		}
	}
	name, record := policyFile, any(policyRecord{p.Pooling, p.MaxLength, p.IsReward(), p.words.prompt})
	if p.IsReward() && p.lm != nil {
		name, record = rewardFile, rewardRecord{p.MaxLength}
	}
	return files.SaveJSON(filepath.Join(dir, name), record)
}

// saveConfig copies config.json from another folder, or the same, with the policy's labels and a change.
func (p *Classifier) saveConfig(dir, from string, change func(config map[string]any)) error {
	var raw map[string]json.RawMessage
	if err := files.LoadJSON(filepath.Join(from, "config.json"), &raw); err != nil {
		return err
	}
	config := map[string]any{}
	for key, value := range raw { // as it is written: transformers distinguishes 2.0 from 2
		config[key] = value
	}
	label2id := map[string]int{}
	for i, label := range p.Labels {
		label2id[label] = i
	}
	config["id2label"], config["label2id"] = p.id2Label(), label2id
	delete(config, "num_labels")
	change(config)
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

// IsClassifierFolder says whether dir has what Save or Merge of a Classifier wrote.
func IsClassifierFolder(dir string) bool { return files.Exist(dir, policyFile) }

// ReadClassifier reads the Labels, Pooling and MaxLength of a saved Classifier. The policy has no weights: it cannot compute
// and need not be closed.
func ReadClassifier(dir string) (*Classifier, error) {
	var record policyRecord
	if err := files.LoadJSON(filepath.Join(dir, policyFile), &record); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s has no %s: it is not the folder of a trained policy", dir, policyFile)
		}
		return nil, err
	}
	p := &Classifier{Labels: []string{rewardLabel}, Pooling: record.Pooling, MaxLength: record.MaxLength, backbone: &backbone{}}
	p.words.prompt = record.Prompt
	if record.Reward {
		return p, nil
	}
	var err error
	p.Labels, err = ReadMapping(dir)
	return p, err
}

// LoadClassifier loads what Save wrote, with the base model that its adapter names, or what Merge wrote. model is the folder
// or a name as hub.Client.Model takes it. dtype is that of frozen weights, as Config has it. Without trainable the adapter is only used. Errors name the file and what is
// wrong in it.
func LoadClassifier(ctx context.Context, client *hub.Client, model, dtype string, trainable bool) (*Classifier, error) {
	found, err := client.Model(ctx, model, hub.Weights)
	if err != nil {
		return nil, err
	}
	p, err := ReadClassifier(found.Dir)
	if err != nil {
		return nil, err
	}
	if p.IsReward() {
		return nil, fmt.Errorf("%s is a reward model, which scores completions and has no labels", model)
	}
	return p, p.load(ctx, client, found.Dir, dtype, !trainable)
}

// load adds the weights in dir to a policy of which the Labels, Pooling and MaxLength are known. On an error it closes the
// policy.
func (p *Classifier) load(ctx context.Context, client *hub.Client, dir, dtype string, frozen bool) (err error) {
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	var a savedAdapter // none in the folder of a merged model
	base := hub.Model{Dir: dir}
	onLanguageModel := p.Pooling == PoolLast || p.Pooling == PoolScore || p.Pooling == PoolStep
	if files.Exist(dir, lora.ConfigFile) {
		if a, err = readAdapter(dir); err != nil {
			return err
		}
		if err = a.besideHead(p.Pooling == transformers.PoolMean); err != nil {
			return err
		}
		if base, err = a.base(ctx, client, hub.Weights); err != nil {
			return err
		}
	}
	switch {
	case onLanguageModel:
		err = p.loadOnLanguageModel(base, a, dtype, frozen)
	case p.Pooling == transformers.PoolMean || p.Pooling == transformers.PoolFamily:
		err = p.loadOnEncoder(base, a, dtype, frozen, dir)
	default:
		err = fmt.Errorf("%s: pooling is %q, want %q, %q, %q or %q", filepath.Join(dir, policyFile), p.Pooling, transformers.PoolMean, transformers.PoolFamily, PoolLast, PoolScore)
	}
	if err != nil {
		return err
	}
	p.BaseModel, p.source = a.Config.BaseModel, dir
	if limit := p.limit(); (p.MaxLength == 0 || p.IsReward()) && p.lm != nil {
		p.shorten() // no file of ours need be there
	} else if p.MaxLength < 1 || p.MaxLength > limit {
		return fmt.Errorf("%s: max_length is %d, the model reads 1 to %d tokens", filepath.Join(dir, policyFile), p.MaxLength, limit)
	}
	p.nameHead()
	values, err := p.readHead(dir, a.Extra)
	if err != nil {
		return err
	}
	return p.head.set(values)
}

func (p *Classifier) loadOnEncoder(base hub.Model, a savedAdapter, dtype string, frozen bool, dir string) error {
	model, err := transformers.Load(base.Dir, dtype)
	if err != nil {
		return err
	}
	if err := p.useEncoder(model); err != nil {
		return err
	}
	p.adapter.frozen = frozen
	if a.dir != "" {
		if err := a.fits(p.config, base.Dir); err != nil {
			return err
		}
		if err := p.attach(a.Config, a.Pairs); err != nil {
			return err
		}
	}
	p.Tokenizer, err = tokenizer.Load(dir)
	return err
}

func (p *Classifier) loadOnLanguageModel(base hub.Model, a savedAdapter, dtype string, frozen bool) error {
	merged := a.dir == ""
	lm, err := NewCausalLM(Config{Dir: base.Dir, BaseModel: base.Name, Revision: base.Commit, DType: dtype, scored: merged && p.Pooling != PoolScore, pooled: p.Pooling != PoolScore})
	if err != nil {
		return err
	}
	p.useLanguageModel(lm)
	p.adapter.frozen = frozen
	if p.Pooling == PoolScore {
		if err := p.words.spell(lm, p.Labels); err != nil {
			return fmt.Errorf("%s: %w", base.Dir, err)
		}
	}
	switch {
	case merged:
		return nil
	case p.Pooling == PoolLast:
		return lm.attachScored(a)
	}
	if err := a.fitsLanguageModel(lm.config, lm.dir); err != nil {
		return err
	}
	if only := a.MergedOnly(); only != "" {
		return fmt.Errorf("%s has %s, and only low-rank pairs can be trained further", a.dir, only)
	}
	return p.attach(a.Config, a.Pairs)
}
