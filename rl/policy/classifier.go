package policy

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// Classifier is a policy whose action is one of C labels: an encoder or a language model with an adapter, a state z [H] for
// each text, and two heads on it: π(a|x) = softmax(W z + b) and V(x) = w·z + c. With PoolScore there is no W: the
// log-probability of each label's text takes the place of W z + b.
type Classifier struct {
	Labels    []string
	Pooling   string // transformers.PoolMean or PoolFamily; PoolLast or PoolScore on a language model
	MaxLength int    // tokens that a text is cut at, special ones included
	*backbone        // lm's on a language model

	model *transformers.Model // nil on a language model
	lm    *CausalLM           // nil on an encoder
	words labelWords          // with PoolScore
	head  classHead
}

// NewClassifier makes a policy on a pretrained encoder or language model: an adapter that changes nothing yet, and a
// randomly initialised head unless the folder has a head for the same labels.
func NewClassifier(c Config) (*Classifier, error) {
	p := &Classifier{Labels: c.Labels, Pooling: c.Pooling, MaxLength: c.MaxLength}
	err := p.make(c)
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Classifier) make(c Config) error {
	if isLanguageModel(c.Dir) {
		return p.makeOnLanguageModel(c)
	}
	if c.Prompt != nil {
		config, err := transformers.LoadConfig(c.Dir)
		if err != nil {
			return err
		}
		return fmt.Errorf("%s is an encoder (%.40q) and cannot score labels as text; choose a language model", c.Dir, config.ModelType)
	}
	model, err := transformers.Load(c.Dir, c.DType)
	if err != nil {
		return err
	}
	if err := p.makeOnEncoder(model, c); err != nil {
		return err
	}
	p.Tokenizer, err = tokenizer.Load(c.Dir)
	return err
}

// RandomClassifier is a policy without a tokenizer on an encoder of random weights, for benchmarks and tests.
func RandomClassifier(config *transformers.Config, c Config) (*Classifier, error) {
	model, err := transformers.Random(config, c.DType, c.Seed)
	if err != nil {
		return nil, err
	}
	p := &Classifier{Labels: c.Labels, Pooling: c.Pooling, MaxLength: c.MaxLength}
	if err := p.makeOnEncoder(model, c); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// useEncoder makes model the policy's, which closes it.
func (p *Classifier) useEncoder(model *transformers.Model) error {
	p.model = model
	p.backbone = &backbone{BaseModel: model.Dir, dir: model.Dir, core: model.Encoder, config: model.Config, parameters: model.Parameters}
	if p.Pooling == "" {
		pooling, err := transformers.PoolingOf(model.Dir)
		if err != nil {
			return err
		}
		p.Pooling = pooling
	}
	if name := model.Config.PoolerName(); name != "" && p.Pooling == transformers.PoolFamily && model.Pooler == nil {
		return fmt.Errorf("%s has no %s weights, which pooling %q needs; choose pooling %q", model.Dir, name, transformers.PoolFamily, transformers.PoolMean)
	}
	return nil
}

func (p *Classifier) makeOnEncoder(model *transformers.Model, c Config) error {
	if err := p.useEncoder(model); err != nil {
		return err
	}
	if c.BaseModel != "" {
		p.BaseModel = c.BaseModel
	}
	p.shorten()
	p.adapter.frozen = c.Frozen
	l := lora.Config{TaskType: lora.FeatureExtraction}
	if p.Pooling == transformers.PoolFamily {
		l = lora.Config{TaskType: lora.SequenceClassification, Prefix: p.config.Prefix(), ModulesToSave: p.config.HeadModules()}
	}
	if err := p.newAdapter(c, l, nil); err != nil {
		return err
	}
	return p.newHead(c.Seed)
}

func (p *Classifier) makeOnLanguageModel(c Config) error {
	if c.Pooling != "" {
		return fmt.Errorf("pooling %q is for encoders; a classifier on a language model reads the state of the last token", c.Pooling)
	}
	p.Pooling = PoolLast
	c.pooled = c.Prompt == nil
	lm, err := NewCausalLM(c)
	if err != nil {
		return err
	}
	p.useLanguageModel(lm)
	if c.Prompt != nil {
		p.Pooling, p.words.prompt = PoolScore, c.Prompt(lm.Templates == nil)
		if err := p.words.spell(lm, p.Labels); err != nil {
			return err
		}
	}
	p.shorten()
	return p.newHead(c.Seed)
}

// useLanguageModel makes lm the policy's, which closes it. Its value head comes from the policy's own folder.
func (p *Classifier) useLanguageModel(lm *CausalLM) {
	p.lm, p.backbone = lm, lm.backbone
	p.source = ""
}

// limit is how many tokens of a text or a prompt the model reads.
func (p *Classifier) limit() int {
	if p.lm != nil {
		return p.lm.MaxLength() - p.words.longest()
	}
	return p.config.MaxLength()
}

// SetClock sets the clock of a language model's chat template; zero leaves it as it is.
func (p *Classifier) SetClock(now time.Time) {
	if p.lm != nil && !now.IsZero() {
		p.lm.Template.Now = now
	}
}

// shorten keeps MaxLength within the model's limit.
func (p *Classifier) shorten() {
	if limit := p.limit(); p.MaxLength < 1 || p.MaxLength > limit {
		p.MaxLength = limit
	}
}

// nameHead names the parts of the head, which has no weights yet.
func (p *Classifier) nameHead() {
	classes, width := int64(len(p.Labels)), int64(p.width())
	switch p.Pooling {
	case PoolScore:
	case PoolLast:
		p.head.parts = []headPart{{scoreWeight, []int64{classes, width}, &p.head.out.Weight}}
	case PoolStep:
		p.head.layer("score", classes, width, &p.head.out)
	case transformers.PoolFamily:
		dense, out := p.config.HeadLayers()
		p.head.layer(out, classes, width, &p.head.out)
		if dense != "" {
			p.head.layer(dense, width, width, &p.head.dense)
		}
	default:
		p.head.layer("head", classes, width, &p.head.out)
	}
}

// newHead makes a randomly initialised head, or takes the folder's where it has one.
func (p *Classifier) newHead(seed uint64) error {
	p.nameHead()
	if p.model != nil && p.Pooling == transformers.PoolFamily && p.model.Head != nil {
		if have := p.config.ID2Label; !slices.Equal(have, p.Labels) { // a trained head is not dropped in silence
			return fmt.Errorf("%s has a classification head for %d labels %.80q, the data has %d labels %.80q; use data with those labels, or a folder without a head", p.dir, len(have), have, len(p.Labels), p.Labels)
		}
		values, err := p.folderHead()
		if err != nil {
			return err
		}
		return p.head.set(values)
	}
	rng := rl.Stream(seed, rl.StreamInit, 1)
	if p.IsReward() && p.lm != nil { // N(0, 1/(H+1)), as Stiennon et al. 2020 start a reward model
		deviation := math.Sqrt(float64(p.width() + 1))
		return p.head.set(p.head.sampled(func() float64 { return rng.NormFloat64() / deviation }))
	}
	return p.head.set(p.head.uniform(rng, p.width()))
}

// folderHead is the head that came with the model, in the order of the head's parts.
func (p *Classifier) folderHead() ([][]float32, error) {
	vars := []*torch.Var{p.model.Head.Weight, p.model.Head.Bias}
	if dense := p.model.Dense; dense != nil {
		vars = append(vars, dense.Weight, dense.Bias)
	}
	var values [][]float32
	for _, v := range vars {
		data, err := v.Read()
		if err != nil {
			return nil, err
		}
		values = append(values, data)
	}
	return values, nil
}

// IsReward says whether the policy has one output, as reward models do.
func (p *Classifier) IsReward() bool { return len(p.Labels) == 1 }

// Close frees the policy.
func (p *Classifier) Close() {
	p.head.close()
	if p.lm != nil {
		p.lm.Close()
		return
	}
	if p.model == nil { // nothing was loaded
		return
	}
	p.adapter.close()
	p.value.close()
	if p.Tokenizer != nil {
		_ = p.Tokenizer.Close()
	}
	p.model.Close()
}

// Parameters counts the weights: all of them, and those that training changes (a value head included).
func (p *Classifier) Parameters() (total, trainable int64) {
	trainable = p.adapter.size() + p.head.size() + p.value.size()
	return p.parameters + trainable, trainable
}

// Params implements run.Weights: the adapter, the classification head, the value head.
func (p *Classifier) Params() []*torch.Var {
	return slices.Concat(p.adapter.params(), p.head.params(), p.value.params())
}

// Changed implements run.Weights. Nothing keeps a copy of a classifier's weights.
func (p *Classifier) Changed() {}

// Fresh implements Policy. The head of a classifier is part of the policy, and the base model has none; without a head the
// base model is a policy.
func (p *Classifier) Fresh() (bool, error) {
	if p.Pooling == PoolScore {
		return p.backbone.Fresh()
	}
	return false, nil
}

// Groups implements Policy. Biases do not decay.
func (p *Classifier) Groups() ([]Group, error) {
	body := Group{Role: Body, Params: p.adapter.params(), Decay: true}
	return slices.Concat([]Group{body}, p.head.groups(), p.value.groups()), nil
}

// Forward implements Policy.
func (p *Classifier) Forward(s *torch.Scope, b *rl.Batch, pass Pass) Output {
	how := torch.Pass{Adapter: !pass.Base, Checkpoint: pass.Checkpoint}
	texts, of := b.Sequences, []int64(nil)
	if pass.Dropout {
		how.Dropout = torch.Dropout{P: p.adapter.config.Dropout, Keys: b.Dropout}
	} else {
		texts, of = distinct(texts)
	}
	z, labels := p.read(s, texts, how)
	labels = s.LogSoftmax(labels)
	if of != nil {
		index := s.Ints(of, int64(len(of)))
		z, labels = s.Rows(z, index), s.Rows(labels, index)
	}
	out := Output{
		LogProbs: s.Pick(labels, s.Ints(b.Actions, int64(len(b.Actions)))),
		Entropy:  s.Neg(s.SumLast(s.Mul(s.Exp(labels), labels))),
		Labels:   labels,
		Rank:     func(s *torch.Scope) []int64 { return ranks(s.Read(labels), b.Actions, len(p.Labels)) },
	}
	if pass.Values {
		out.Values = p.value.of(s, z, pass)
	}
	return out
}

// distinct are the texts without repetitions, as where several labels are sampled for one, and the index of each text among
// them; nil where there are none.
func distinct(texts [][]int32) (once [][]int32, of []int64) {
	known := map[string]int64{}
	var key []byte
	for _, text := range texts {
		key = key[:0]
		for _, id := range text {
			key = binary.NativeEndian.AppendUint32(key, uint32(id))
		}
		at, seen := known[string(key)]
		if !seen {
			at = int64(len(once))
			known[string(key)] = at
			once = append(once, text)
		}
		of = append(of, at)
	}
	if len(once) == len(texts) {
		return texts, nil
	}
	return once, of
}

// ranks counts for each row of logProbs [S, C] the labels above its action; of equal labels the first is above.
func ranks(logProbs []float32, actions []int64, classes int) []int64 {
	out := make([]int64, len(actions))
	for i, action := range actions {
		row := logProbs[i*classes : (i+1)*classes]
		for k, l := range row {
			if l > row[action] || l == row[action] && int64(k) < action {
				out[i]++
			}
		}
	}
	return out
}

// read is the state z of each sequence, [S, H], and the labels' logits, [S, C].
func (p *Classifier) read(s *torch.Scope, sequences [][]int32, how torch.Pass) (z, logits torch.Tensor) {
	switch p.Pooling {
	case PoolScore:
		return p.words.scores(s, p.lm, sequences, how)
	case PoolLast:
		z = p.lm.lastStates(s, sequences, how)
	case transformers.PoolMean:
		z = s.SegmentMean(s.Hidden(p.core, torch.Pack(sequences), how))
	default:
		z = p.model.Features(s, torch.Pack(sequences), how, &p.head.dense)
	}
	return z, p.head.logits(s, z)
}

// Probs is π(·|x) of each sequence, in order. It stops early with ctx's error.
func (p *Classifier) Probs(ctx context.Context, sequences [][]int32) ([][]float32, error) {
	classes := len(p.Labels)
	all := make([][]float32, 0, len(sequences))
	err := p.inParts(ctx, len(sequences), func(i int) int { return len(sequences[i]) + p.words.total() }, func(s *torch.Scope, from, to int) error {
		_, logits := p.read(s, sequences[from:to], torch.Pass{Adapter: true})
		flat := s.Read(s.Exp(s.LogSoftmax(logits)))
		for range to - from {
			all = append(all, flat[:classes:classes])
			flat = flat[classes:]
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("predicting: %w", err)
	}
	return all, nil
}

// Examples are labelled texts as a policy sees them.
type Examples struct {
	IDs    [][]int32 // token ids of each text
	Labels []int     // index into the policy's labels
	Cut    int       // texts that were longer than the policy's MaxLength
}

// Len is the number of examples.
func (e Examples) Len() int { return len(e.IDs) }

// Samples are the examples for SFT: the label is the action. Their Prompt is their index.
func (e Examples) Samples() []*rl.Sample {
	samples := make([]*rl.Sample, e.Len())
	for i, ids := range e.IDs {
		label := int32(e.Labels[i])
		samples[i] = &rl.Sample{Tokens: ids, Actions: []int32{label}, Truth: label, Prompt: i}
	}
	return samples
}

// Encode turns rows into examples. Errors name the file and line of a text that cannot be encoded, or of a label that the
// policy does not have.
func (p *Classifier) Encode(rows []dataset.Row) (Examples, error) {
	labels, err := dataset.LabelIndex(rows, p.Labels)
	if err != nil {
		return Examples{}, err
	}
	e := Examples{IDs: make([][]int32, len(rows)), Labels: labels}
	cut, errs := make([]bool, len(rows)), make([]error, len(rows))
	onAllProcessors(len(rows), func(i int) { e.IDs[i], cut[i], errs[i] = p.EncodeText(rows[i].Text) })
	for i, err := range errs {
		if err != nil {
			return Examples{}, fmt.Errorf("%s:%d: %w", rows[i].File, rows[i].Line, err)
		}
		if cut[i] {
			e.Cut++
		}
	}
	return e, nil
}

// EncodeText is the token ids of one text, and whether it was cut at MaxLength.
func (p *Classifier) EncodeText(text string) (ids []int32, cut bool, err error) {
	if p.Pooling == PoolScore {
		return p.words.encode(p.lm, text, p.MaxLength)
	}
	return p.Tokenizer.Encode(text, p.MaxLength)
}

// Shown is what the policy reads of a text, and the number of its tokens.
func (p *Classifier) Shown(text string) (string, int, error) {
	ids, _, err := p.EncodeText(text)
	if err != nil {
		return "", 0, err
	}
	shown, err := p.Tokenizer.Decode(ids, false)
	return shown, len(ids), err
}
