package policy

import (
	"context"
	"fmt"
	"slices"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// Decider is a policy whose action is an option of a question about a state: π(a|x) is the softmax of the options' logits,
// which are those of a language model's next token for their labels, or the outputs of a classifier's head for a fixed list
// of questions.
type Decider struct {
	decides
	Asker *decision.Asker // its Temperature divides the logits of answers, not those that training sees
	// MaxLength is the most tokens of a prompt for a language model; 0 = what the model reads.
	MaxLength int

	lm        *CausalLM
	head      *Classifier
	questions []decision.Question // of the head: their options are its labels, one after the other
}

// decides is the model of a Decider.
type decides interface {
	Policy
	Parameters() (total, trainable int64)
	ActivationBytes(checkpointed bool) int64
	CacheBytes() int64
	Save(dir string) error
	Close()
}

// NewScoringDecider answers with the labels' tokens of a language model. Where Yes and No are no single tokens of it, the
// labels of noul questions are letters.
func NewScoringDecider(lm *CausalLM) (*Decider, error) {
	asker, err := lm.Asker()
	if err != nil {
		return nil, err
	}
	if _, err := lm.labelIDs([]string{"Yes", "No"}); err != nil && len(asker.Labels[decision.Noul]) == 0 {
		if asker.Labels == nil {
			asker.Labels = map[string][]string{}
		}
		asker.Labels[decision.Noul] = []string{"A", "B"}
	}
	if !asker.HasTemplate() && lm.Templates == nil {
		return nil, fmt.Errorf("%s has no chat template; choose a chat model", lm.dir)
	}
	template, err := asker.Template()
	if err == nil {
		err = asker.SetTemplate(template)
	}
	return &Decider{decides: lm, Asker: asker, lm: lm}, err
}

// NewHeadDecider answers a fixed list of questions with a head on the text of the state.
func NewHeadDecider(head *Classifier, questions []decision.Question) *Decider {
	return &Decider{decides: head, Asker: (decision.Config{}).Asker(decision.Renderer{}), head: head, questions: questions}
}

// HeadLabels names the outputs of a head for a list of questions.
func HeadLabels(questions []decision.Question) (labels []string) {
	for _, q := range questions {
		for _, option := range q.Options {
			labels = append(labels, q.Name+": "+option)
		}
	}
	return labels
}

// FixedQuestions are the questions of cases, each once. A name that has two lists of options is an error.
func FixedQuestions(cases []envs.Decision) (all []decision.Question, err error) {
	known := map[string]decision.Question{}
	for _, d := range cases {
		q, met := known[d.Question.Name]
		switch {
		case !met:
			known[d.Question.Name] = d.Question
			all = append(all, d.Question)
		case q.Type != d.Question.Type || !slices.Equal(q.Options, d.Question.Options):
			return nil, fmt.Errorf("%s:%d: questions.%s: has other options than in rows before, and a head needs a fixed list; use --policy score with a language model", d.File, d.Line, q.Name)
		}
	}
	return all, nil
}

// Scores tells whether a language model reads the questions.
func (p *Decider) Scores() bool { return p.lm != nil }

// BaseModel is the name of the base model.
func (p *Decider) BaseModel() string { return p.base().BaseModel }

func (p *Decider) base() *backbone {
	if p.lm != nil {
		return p.lm.backbone
	}
	return p.head.backbone
}

// Encode makes a sample of each case, whose Prompt is its index and whose action is its most likely answer. cut counts states
// that a head reads only in part. Errors name file, line and field.
func (p *Decider) Encode(cases []envs.Decision) (samples []*rl.Sample, cut int, err error) {
	for from := 0; from < len(cases); {
		to := from + 1
		for to < len(cases) && cases[to].Row == cases[from].Row && cases[to].File == cases[from].File {
			to++
		}
		encode := p.encodeRow
		if p.head != nil {
			encode = p.encodeHead
		}
		row, short, err := encode(cases[from:to])
		if err != nil {
			return nil, 0, fmt.Errorf("%s:%d: %w", cases[from].File, cases[from].Line, err)
		}
		for i, x := range row {
			d := &cases[from+i]
			x.Prompt = from + i
			x.Truth = int32(max(0, d.Truth()))
			if d.Feedback != nil {
				x.Truth = int32(d.Feedback.Chosen)
			}
			x.Actions = []int32{x.Truth}
		}
		if samples = append(samples, row...); short {
			cut += len(row)
		}
		from = to
	}
	return samples, cut, nil
}

// encodeRow are the questions about one state for a language model.
func (p *Decider) encodeRow(cases []envs.Decision) (row []*rl.Sample, cut bool, err error) {
	var questions []decision.Question
	for _, d := range cases {
		q, err := p.Asker.Label(d.Question)
		if err != nil {
			return nil, false, fmt.Errorf("questions.%s: %w", d.Question.Name, err)
		}
		questions = append(questions, q)
	}
	prompts, err := p.Asker.Prompts(cases[0].State, questions)
	if err != nil {
		return nil, false, err
	}
	for _, prompt := range prompts {
		tokens, rows, labels, err := p.lm.place(prompt)
		if err != nil {
			return nil, false, err
		}
		if p.MaxLength > 0 && len(tokens) > p.MaxLength {
			return nil, false, fmt.Errorf("questions.%s: the prompt has %d tokens, and max_length is %d", prompt.Questions[0].Name, len(tokens), p.MaxLength)
		}
		for i, q := range prompt.Questions {
			own := cases[len(row)].Question.Options
			x := &rl.Sample{Tokens: tokens[: rows[i]+1 : rows[i]+1], Rows: rows[i : i+1], Options: make([]int32, len(own))}
			for k, option := range own {
				x.Options[k] = labels[i][slices.Index(q.Options, option)]
			}
			row = append(row, x)
		}
	}
	return row, false, nil
}

// encodeHead are the questions about one state for a head, which reads the state alone.
func (p *Decider) encodeHead(cases []envs.Decision) (row []*rl.Sample, cut bool, err error) {
	text, ok := cases[0].State.(string)
	if !ok {
		if text, err = jinja.JSON(cases[0].State); err != nil {
			return nil, false, fmt.Errorf("state: %w", err)
		}
	}
	ids, cut, err := p.head.EncodeText(text)
	if err != nil {
		return nil, false, fmt.Errorf("state: %w", err)
	}
	for _, d := range cases {
		first, known := int32(0), false
		for _, q := range p.questions {
			if known = q.Name == d.Question.Name && q.Type == d.Question.Type && slices.Equal(q.Options, d.Question.Options); known {
				break
			}
			first += int32(len(q.Options))
		}
		if !known {
			return nil, false, fmt.Errorf("questions.%s: the model was not trained for this question with these options", d.Question.Name)
		}
		x := &rl.Sample{Tokens: ids}
		for k := range d.Question.Options {
			x.Options = append(x.Options, first+int32(k))
		}
		row = append(row, x)
	}
	return row, cut, nil
}

// noOption is added to the logits of options that a question lacks.
const noOption = -1e9

// Forward implements Policy. Labels has log π of the options, [S, C] for the longest list of options; those that a question
// lacks have π = 0.
func (p *Decider) Forward(s *torch.Scope, b *rl.Batch, pass Pass) Output {
	how := torch.Pass{Adapter: !pass.Base, Checkpoint: pass.Checkpoint}
	if pass.Dropout {
		how.Dropout = torch.Dropout{P: p.base().adapter.config.Dropout, Keys: b.Dropout}
	}
	z, logits, first := p.options(s, b, how)
	n, width := len(b.Options), 0
	for _, options := range b.Options {
		width = max(width, len(options))
	}
	index, mask := make([]int64, 0, n*width), make([]float32, 0, n*width)
	for i, options := range b.Options {
		for k := range width {
			if k < len(options) {
				index, mask = append(index, first[i][k]), append(mask, 0)
			} else {
				index, mask = append(index, first[i][0]), append(mask, noOption)
			}
		}
	}
	rows, columns := int64(n), int64(width)
	labels := s.View(s.Rows(logits, s.Ints(index, rows*columns)), rows, columns)
	labels = s.LogSoftmax(s.Add(labels, s.Floats(mask, rows, columns)))
	out := Output{
		LogProbs: s.Pick(labels, s.Ints(b.Actions, rows)),
		Entropy:  s.Neg(s.SumLast(s.Mul(s.Exp(labels), labels))),
		Labels:   labels,
		Rank:     func(s *torch.Scope) []int64 { return ranks(s.Read(labels), b.Actions, width) },
	}
	if pass.Values {
		out.Values = p.base().value.of(s, z, pass)
	}
	return out
}

// options are the states of the S samples, [S, H], the logits of options, [N, 1], and where those of each sample are.
func (p *Decider) options(s *torch.Scope, b *rl.Batch, how torch.Pass) (z, logits torch.Tensor, at [][]int64) {
	at = make([][]int64, len(b.Options))
	if p.lm != nil {
		z = p.lm.states(s, b.Sequences, b.Rows, how)
		var rows, tokens []int64
		for i, options := range b.Options {
			for _, id := range options {
				at[i] = append(at[i], int64(len(rows)))
				rows, tokens = append(rows, int64(i)), append(tokens, int64(id))
			}
		}
		logProbs, _, _ := p.lm.logProbs(s, s.Rows(z, s.Ints(rows, int64(len(rows)))), tokens, 1)
		return z, s.View(logProbs, int64(len(tokens)), 1), at
	}
	texts, of := b.Sequences, []int64(nil)
	if how.Dropout.P == 0 {
		texts, of = distinct(texts)
	}
	z, logits = p.head.read(s, texts, how)
	width := int64(len(p.head.Labels))
	logits = s.View(logits, int64(len(texts))*width, 1)
	for i, options := range b.Options {
		row := int64(i)
		if of != nil {
			row = of[i]
		}
		for _, label := range options {
			at[i] = append(at[i], row*width+int64(label))
		}
	}
	if of != nil {
		z = s.Rows(z, s.Ints(of, int64(len(of))))
	}
	return z, logits, at
}

// LogProbs are log π of the options of each sample, at temperature 1.
func (p *Decider) LogProbs(ctx context.Context, samples []*rl.Sample) ([][]float32, error) {
	var all [][]float32
	err := p.base().inParts(ctx, len(samples), func(i int) int { return len(samples[i].Tokens) }, func(s *torch.Scope, from, to int) error {
		out := p.Forward(s, rl.NewBatch(samples[from:to]), Pass{})
		flat := s.Read(out.Labels)
		width := len(flat) / (to - from)
		for i, x := range samples[from:to] {
			all = append(all, slices.Clone(flat[i*width:i*width+len(x.Options)]))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("deciding: %w", err)
	}
	return all, nil
}

// Probs are the answers: Softmax of LogProbs at the temperature of each question's type.
func (p *Decider) Probs(cases []envs.Decision, logProbs [][]float32) [][]float64 {
	all := make([][]float64, len(cases))
	for i := range cases {
		all[i] = Softmax(logProbs[i], p.Asker.TemperatureOf(cases[i].Question.Type))
	}
	return all
}
