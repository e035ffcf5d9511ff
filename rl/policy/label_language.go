package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/words"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// How a classifier on a language model reads a text.
const (
	// PoolLast is the state of the text's last token, which a head reads, as transformers'
	// …ForSequenceClassification does.
	PoolLast = "last"
	// PoolScore has no head: the text is put into a prompt, and what the model thinks of each label's own text behind it
	// is the label's score.
	PoolScore = "score"
)

// TextMark stands for the text in a prompt that is made for all texts.
const TextMark = "{text}"

// labelWords is what a classifier with PoolScore knows beside its model.
type labelWords struct {
	prompt envs.Observation // with TextMark
	tokens [][]int32        // of each label, with the one that ends it
}

// isLanguageModel tells the folder of a language model from that of an encoder.
func isLanguageModel(dir string) bool {
	_, err := transformers.LoadCausalConfig(dir)
	return err == nil
}

// newLanguageLabel is NewLabel on a language model.
func newLanguageLabel(c LabelConfig) (*Classifier, error) {
	if c.Pooling != "" {
		return nil, fmt.Errorf("policy: pooling %s is for encoders: of a language model the last token is read", c.Pooling)
	}
	lm, err := NewToken(TokenConfig{Dir: c.Dir, BaseModel: c.BaseModel, Revision: c.Revision, R: c.R, Alpha: c.Alpha, Dropout: c.Dropout, Targets: c.Targets, Seed: c.Seed})
	if err != nil {
		return nil, err
	}
	p := &Classifier{Labels: c.Labels, Pooling: PoolLast, MaxLength: c.MaxLength, BaseModel: lm.BaseModel, lm: lm, tokenizer: lm.Tokenizer}
	if c.Prompt != nil {
		p.Pooling, p.words.prompt = PoolScore, c.Prompt(lm.Templates == nil)
		err = p.spell()
	}
	if limit := p.mostTokens(); p.MaxLength == 0 || p.MaxLength > limit {
		p.MaxLength = limit
	}
	if err == nil {
		err = p.initHeads(c.Seed)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// spell finds the tokens of each label: behind a text a space before and a line end after it, in a conversation the token
// that ends a message after it. So of two labels of which one begins with the other, each is a whole.
func (p *Classifier) spell() error {
	shows := strings.Contains(p.words.prompt.Text, TextMark)
	for _, m := range p.words.prompt.Messages {
		shows = shows || strings.Contains(m.Content, TextMark)
	}
	if !shows {
		return fmt.Errorf("the prompt of labels that are scored has no %s, which stands for the text", TextMark)
	}
	known := map[string]string{}
	for _, label := range p.Labels {
		written := " " + label + "\n"
		chat := p.words.prompt.Messages != nil && len(p.lm.eos) > 0
		if chat {
			written = label
		}
		ids, err := p.tokenizer.EncodeRaw(written, false)
		if err != nil {
			return fmt.Errorf("label %q: %w", label, err)
		}
		if chat {
			ids = append(ids, p.lm.eos[0])
		}
		key := fmt.Sprint(ids)
		if other, twice := known[key]; twice {
			return fmt.Errorf("labels %q and %q have the same tokens: %s cannot tell them apart", other, label, p.BaseModel)
		}
		known[key] = label
		p.words.tokens = append(p.words.tokens, ids)
	}
	if p.mostTokens() < 1 {
		return fmt.Errorf("the labels are longer than the %d tokens that %s reads", p.lm.MaxLength(), p.BaseModel)
	}
	return nil
}

// mostTokens is how many tokens the model reads of a text or a prompt.
func (p *Classifier) mostTokens() int {
	longest := 0
	for _, ids := range p.words.tokens {
		longest = max(longest, len(ids))
	}
	return p.lm.MaxLength() - longest
}

// observe is the tokens of the prompt with a text in it.
func (p *Classifier) observe(text string) ([]int32, error) {
	shown := envs.Observation{Text: strings.ReplaceAll(p.words.prompt.Text, TextMark, text)}
	for _, m := range p.words.prompt.Messages {
		shown.Messages = append(shown.Messages, envs.Message{Role: m.Role, Content: strings.ReplaceAll(m.Content, TextMark, text)})
	}
	return p.lm.Observe(shown)
}

// encodePrompt is observe with as much of the text as MaxLength leaves room for.
func (p *Classifier) encodePrompt(text string) (ids []int32, cut bool, err error) {
	if ids, err = p.observe(text); err != nil || len(ids) <= p.MaxLength {
		return ids, false, err
	}
	whole, err := p.tokenizer.EncodeRaw(text, false)
	if err != nil {
		return nil, false, err
	}
	for keep := len(whole); len(ids) > p.MaxLength; {
		if keep -= len(ids) - p.MaxLength; keep < 1 {
			return nil, true, fmt.Errorf("the prompt leaves no room for a text: it has %d tokens with next to none of it, and %d are read", len(ids), p.MaxLength)
		}
		short, err := p.tokenizer.Decode(whole[:keep], true)
		if err != nil {
			return nil, true, err
		}
		if ids, err = p.observe(short); err != nil {
			return nil, true, err
		}
	}
	return ids, true, nil
}

// Shown is what the policy reads of a text, and how many tokens that is.
func (p *Classifier) Shown(text string) (string, int, error) {
	ids, _, err := p.EncodeText(text)
	if err != nil {
		return "", 0, err
	}
	shown, err := p.tokenizer.Decode(ids, false)
	return shown, len(ids), err
}

// scoreLabels says of S prompts what the model thinks of each label behind them: the log-probability of its tokens, summed,
// [S, C], and z, the states of the prompts' last tokens, [S, H]. A prompt is computed once for all labels.
func (p *Classifier) scoreLabels(s *torch.Scope, prompts [][]int32, how torch.Pass) (z, scores torch.Tensor) {
	var sequences [][]int32
	var rows, targets, last []int64
	var keys []uint64
	begin, borders, counts := int64(0), []int32{0}, []float32(nil)
	for i, prompt := range prompts {
		last = append(last, int64(len(rows)))
		for _, label := range p.words.tokens {
			sequence := slices.Concat(prompt, label[:len(label)-1])
			for at, token := range label {
				rows, targets = append(rows, begin+int64(len(prompt)-1+at)), append(targets, int64(token))
			}
			begin += int64(len(sequence))
			sequences, borders, counts = append(sequences, sequence), append(borders, int32(len(rows))), append(counts, float32(len(label)))
			if how.Dropout.P > 0 {
				keys = append(keys, how.Dropout.Keys[i]) // all labels meet the same dropout of the prompt
			}
		}
	}
	how.Dropout.Keys = keys
	packed, moved := p.lm.pack(sequences, rows, how)
	how.Rows = moved
	states, _ := s.Hidden(p.lm.model.Model, packed, how)
	logProbs, _, _ := p.lm.head(s, states, targets, 1)
	means := s.SegmentMean(s.View(logProbs, int64(len(rows)), 1), s.Int32s(borders, int64(len(borders))))
	sums := s.Mul(means, s.Floats(counts, int64(len(counts)), 1))
	return s.Rows(states, s.Ints(last, int64(len(last)))), s.View(sums, int64(len(prompts)), int64(len(p.Labels)))
}

// headTokens is how many tokens a forward pass adds to a text: those of the labels.
func (p *Classifier) headTokens() int {
	n := 0
	for _, ids := range p.words.tokens {
		n += len(ids)
	}
	return n
}

// loadLanguage is load of a classifier on a language model.
func (p *Classifier) loadLanguage(ctx context.Context, client *hub.Client, dir string) error {
	config, pairs, extra, err := lora.Load(dir)
	if err != nil {
		return err
	}
	base, err := baseModel(ctx, client, dir, config)
	if err != nil {
		return err
	}
	if p.lm, err = NewToken(TokenConfig{Dir: base.Dir, BaseModel: base.Name, Revision: base.Commit}); err != nil {
		return err
	}
	p.BaseModel, p.tokenizer, p.lm.adapter.frozen = config.BaseModel, p.lm.Tokenizer, p.adapter.frozen
	if p.Pooling == PoolScore {
		if err = p.spell(); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		err = p.loadScorer(dir, config, pairs, extra)
	} else if err = p.lm.attachScored(dir, config, pairs); err == nil {
		var heads [][]float32
		if heads, err = p.readHeads(dir, extra); err == nil {
			err = p.setHeads(heads)
		}
	}
	if err != nil {
		return err
	}
	if limit := p.mostTokens(); p.MaxLength < 1 || p.MaxLength > limit {
		return fmt.Errorf("%s: max_length is %d, the model reads %d", dir, p.MaxLength, limit)
	}
	return nil
}

// loadScorer puts on the adapter of a language model.
func (p *Classifier) loadScorer(dir string, config lora.Config, pairs []lora.Pair, extra map[string]safetensors.Tensor) error {
	if err := FitsLanguageModel(p.lm.model.Config, config, pairs, extra); err != nil {
		return fmt.Errorf("%s does not fit %s: %w", dir, p.BaseModel, err)
	}
	if whole := mergedOnly(config, extra); whole != "" {
		return fmt.Errorf("%s has %s: only low-rank pairs go on learning", dir, whole)
	}
	p.lm.adapter.config = config
	return p.lm.adapter.attach(p.lm.model.Model, p.lm.model.Config.Linears(), pairs)
}

// notALanguageModel refuses a base model for PoolScore.
func notALanguageModel(dir string) error {
	config, err := transformers.LoadConfig(dir)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s is an encoder (%s), which writes nothing: labels are scored by a language model", dir, words.Quote(config.ModelType))
}
