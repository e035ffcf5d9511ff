package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/torch"
)

// How a classifier on a language model reads a text.
const (
	// PoolLast reads the state of the text's last token with a head, as transformers' …ForSequenceClassification does.
	PoolLast = "last"
	// PoolScore has no head: the text is put into a prompt, and the log-probability of each label's text after it is the
	// label's logit.
	PoolScore = "score"
	// PoolStep reads the states of the tokens that end steps, as transformers' …ForTokenClassification in TRL's process reward models.
	PoolStep = "step"
)

// TextMark is the place of the text in a prompt.
const TextMark = "{text}"

// labelWords are labels as texts after a prompt. The zero value has none.
type labelWords struct {
	prompt envs.Observation // with TextMark
	tokens [][]int32        // of each label, with the one that ends it
}

// spell finds the tokens of each label. In a text a space comes before a label and a line end after it; in a conversation
// the token that ends a message comes after it. So a label that begins with another one is distinct from it.
func (w *labelWords) spell(lm *CausalLM, labels []string) error {
	marked := strings.Contains(w.prompt.Text, TextMark)
	for _, m := range w.prompt.Messages {
		marked = marked || strings.Contains(m.Content, TextMark)
	}
	if !marked {
		return fmt.Errorf("the prompt that scores labels has no %s; put it where the text belongs", TextMark)
	}
	known := map[string]string{}
	for _, label := range labels {
		written := " " + label + "\n"
		chat := w.prompt.Messages != nil && len(lm.eos) > 0
		if chat {
			written = label
		}
		ids, err := lm.Tokenizer.EncodeRaw(written, false)
		if err != nil {
			return fmt.Errorf("label %q: %w", label, err)
		}
		if chat {
			ids = append(ids, lm.eos[0])
		}
		key := fmt.Sprint(ids)
		if other, twice := known[key]; twice {
			return fmt.Errorf("labels %q and %q have the same tokens; %s cannot tell them apart", other, label, lm.BaseModel)
		}
		known[key] = label
		w.tokens = append(w.tokens, ids)
	}
	if w.longest() >= lm.MaxLength() {
		return fmt.Errorf("a label has %d tokens, %s reads %d; shorten the labels", w.longest(), lm.BaseModel, lm.MaxLength())
	}
	return nil
}

// longest is the number of tokens of the longest label.
func (w *labelWords) longest() (n int) {
	for _, ids := range w.tokens {
		n = max(n, len(ids))
	}
	return n
}

// total is the number of tokens that a forward pass adds to a text.
func (w *labelWords) total() (n int) {
	for _, ids := range w.tokens {
		n += len(ids)
	}
	return n
}

// observe is the tokens of the prompt with a text in it.
func (w *labelWords) observe(lm *CausalLM, text string) ([]int32, error) {
	shown := envs.Observation{Text: strings.ReplaceAll(w.prompt.Text, TextMark, text)}
	for _, m := range w.prompt.Messages {
		shown.Messages = append(shown.Messages, envs.Message{Role: m.Role, Content: strings.ReplaceAll(m.Content, TextMark, text)})
	}
	return lm.EncodeObservation(shown)
}

// encode is observe with the text cut so that there are at most limit tokens.
func (w *labelWords) encode(lm *CausalLM, text string, limit int) (ids []int32, cut bool, err error) {
	if ids, err = w.observe(lm, text); err != nil || len(ids) <= limit {
		return ids, false, err
	}
	full, err := lm.Tokenizer.EncodeRaw(text, false)
	if err != nil {
		return nil, false, err
	}
	for keep := len(full); len(ids) > limit; {
		if keep -= len(ids) - limit; keep < 1 {
			return nil, true, fmt.Errorf("the prompt has %d tokens without the text, and max_length is %d; raise --max-length, shorten the prompt template or use fewer labels", len(ids), limit)
		}
		short, err := lm.Tokenizer.Decode(full[:keep], true)
		if err != nil {
			return nil, true, err
		}
		if ids, err = w.observe(lm, short); err != nil {
			return nil, true, err
		}
	}
	return ids, true, nil
}

// scores are, for S prompts, the log-probabilities of each label's tokens, summed, [S, C], and z, the states of the prompts'
// last tokens, [S, H]. A prompt is computed once for all labels.
func (w *labelWords) scores(s *torch.Scope, lm *CausalLM, prompts [][]int32, how torch.Pass) (z, scores torch.Tensor) {
	var sequences [][]int32
	var rows, targets, last []int64
	var keys []uint64
	begin, borders, counts := int64(0), []int32{0}, []float32(nil)
	for i, prompt := range prompts {
		last = append(last, int64(len(rows)))
		for _, label := range w.tokens {
			sequence := slices.Concat(prompt, label[:len(label)-1])
			for at, token := range label {
				rows, targets = append(rows, begin+int64(len(prompt)-1+at)), append(targets, int64(token))
			}
			begin += int64(len(sequence))
			sequences, borders, counts = append(sequences, sequence), append(borders, int32(len(rows))), append(counts, float32(len(label)))
			if how.Dropout.P > 0 {
				keys = append(keys, how.Dropout.Keys[i]) // the prompt has the same dropout before every label
			}
		}
	}
	how.Dropout.Keys = keys
	states := lm.states(s, sequences, rows, how)
	logProbs, _, _ := lm.logProbs(s, states, targets, 1)
	means := s.SegmentMean(s.View(logProbs, int64(len(rows)), 1), s.Int32s(borders, int64(len(borders))))
	sums := s.Mul(means, s.Floats(counts, int64(len(counts)), 1))
	return s.Rows(states, s.Ints(last, int64(len(last)))), s.View(sums, int64(len(prompts)), int64(len(w.tokens)))
}
