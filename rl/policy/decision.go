package policy

import (
	"context"
	"fmt"
	"slices"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// Asked are questions about a state, as a Decider reads them.
type Asked struct {
	Tokens int // of all prompts

	questions []decision.Question
	samples   []*rl.Sample // one for each question
	cut       bool         // a head reads the state only in part
}

// Asker asks questions by the settings in the folder of the policy, or else of its base model.
func (p *CausalLM) Asker() (*decision.Asker, error) {
	var c decision.Config
	for _, dir := range []string{p.source, p.dir} {
		var found bool
		var err error
		if c, found, err = decision.Load(dir); err != nil {
			return nil, err
		}
		if found {
			break
		}
	}
	controls := func() []string { return p.Tokenizer.ControlTokens(p.Templates.Source()) }
	return c.Asker(decision.Renderer{Chat: p.Templates, Special: p.Tokenizer.Special(), Controls: controls, Now: p.Template.Now}), nil
}

// NewScoringDecider answers with the labels' tokens of a language model. Where Yes and No are no single tokens of it, the
// labels of noul questions are letters.
func NewScoringDecider(lm *CausalLM) (*Decider, error) {
	p, err := lm.Decider()
	if err != nil {
		return nil, err
	}
	asker := p.Asker
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
	return p, err
}

// Decider answers as the settings in the folder of the policy, or else of its base model, say.
func (p *CausalLM) Decider() (*Decider, error) {
	asker, err := p.Asker()
	return &Decider{decides: p, Asker: asker, lm: p}, err
}

// Parse reads the questions of a request.
func (p *Decider) Parse(questions *jinja.Dict) ([]decision.Question, error) {
	if p.head != nil {
		return decision.ParseQuestions(questions)
	}
	return p.Asker.Parse(questions)
}

// Ask encodes questions about a state. For a language model, a question whose labels are not single tokens, and a prompt that
// is longer than the model reads, are errors; for a head, questions that it was not trained for.
func (p *Decider) Ask(state jinja.Value, questions []decision.Question) (Asked, error) {
	if p.head != nil {
		return p.askHead(state, questions)
	}
	a := Asked{questions: questions}
	if p.lm.Templates == nil && !p.Asker.HasTemplate() {
		return a, fmt.Errorf("%s %w; choose a chat model", p.lm.dir, chat.ErrNone)
	}
	prompts, err := p.Asker.Prompts(state, questions)
	if err != nil {
		return a, err
	}
	for _, prompt := range prompts {
		tokens, rows, labels, err := p.lm.place(prompt)
		if err != nil {
			return a, err
		}
		if p.MaxLength > 0 && len(tokens) > p.MaxLength {
			return a, fmt.Errorf("question %q: the prompt has %d tokens, and max_length is %d", prompt.Questions[0].Name, len(tokens), p.MaxLength)
		}
		for i, row := range rows {
			a.samples = append(a.samples, &rl.Sample{Tokens: tokens[: row+1 : row+1], Rows: rows[i : i+1], Actions: []int32{0}, Options: labels[i]})
		}
		a.Tokens += len(tokens)
	}
	return a, nil
}

// askHead encodes the state alone, which is all that a head reads.
func (p *Decider) askHead(state jinja.Value, questions []decision.Question) (a Asked, err error) {
	a.questions = questions
	text, ok := state.(string)
	if !ok {
		if text, err = jinja.JSON(state); err != nil {
			return a, fmt.Errorf("state: %w", err)
		}
	}
	ids, cut, err := p.head.EncodeText(text)
	if err != nil {
		return a, fmt.Errorf("state: %w", err)
	}
	a.Tokens, a.cut = len(ids), cut
	for _, asked := range questions {
		first, known := int32(0), false
		for _, q := range p.questions {
			if known = q.Name == asked.Name && q.Type == asked.Type && slices.Equal(q.Options, asked.Options); known {
				break
			}
			first += int32(len(q.Options))
		}
		if !known {
			return a, fmt.Errorf("question %q: the model was not trained for this question with these options", asked.Name)
		}
		x := &rl.Sample{Tokens: ids, Actions: []int32{0}}
		for k := range asked.Options {
			x.Options = append(x.Options, first+int32(k))
		}
		a.samples = append(a.samples, x)
	}
	return a, nil
}

// Encode makes a sample of each case, whose Prompt is its index and whose action is its most likely answer. cut counts states
// that a head reads only in part. Errors name file, line and field.
func (p *Decider) Encode(cases []envs.Decision) (samples []*rl.Sample, cut int, err error) {
	for from := 0; from < len(cases); {
		to := from + 1
		for to < len(cases) && cases[to].Row == cases[from].Row && cases[to].File == cases[from].File {
			to++
		}
		a, err := p.AskCases(cases[from:to])
		if err != nil {
			return nil, 0, fmt.Errorf("%s:%d: %w", cases[from].File, cases[from].Line, err)
		}
		for i, x := range a.samples {
			d := &cases[from+i]
			x.Prompt = from + i
			x.Truth = int32(max(0, d.Truth()))
			if d.Feedback != nil {
				x.Truth = int32(d.Feedback.Chosen)
			}
			x.Actions = []int32{x.Truth}
		}
		if samples = append(samples, a.samples...); a.cut {
			cut += len(a.samples)
		}
		from = to
	}
	return samples, cut, nil
}

// AskCases asks the questions about one state.
func (p *Decider) AskCases(cases []envs.Decision) (a Asked, err error) {
	questions := make([]decision.Question, len(cases))
	for i, d := range cases {
		questions[i] = d.Question
		if p.lm != nil {
			if questions[i], err = p.Asker.Label(d.Question); err != nil {
				return a, fmt.Errorf("question %q: %w", d.Question.Name, err)
			}
		}
	}
	if a, err = p.Ask(cases[0].State, questions); err != nil {
		return a, err
	}
	for i, x := range a.samples { // a noul question has its options in the model's order
		own := make([]int32, len(x.Options))
		for k, option := range cases[i].Question.Options {
			own[k] = x.Options[slices.Index(questions[i].Options, option)]
		}
		x.Options, a.questions[i] = own, cases[i].Question
	}
	return a, nil
}

// place is a prompt as tokens. rows are the tokens that answer its questions, labels the tokens of their options.
func (p *CausalLM) place(prompt decision.Prompt) (tokens []int32, rows []int, labels [][]int32, err error) {
	for i, piece := range prompt.Pieces {
		ids, err := p.encodePiece(piece, i == 0)
		if err != nil {
			return nil, nil, nil, err
		}
		if tokens = append(tokens, ids...); len(tokens) > p.MaxLength() {
			return nil, nil, nil, fmt.Errorf("question %q: the prompt has more than the %d tokens that the model reads", prompt.Questions[0].Name, p.MaxLength())
		}
		if !piece.Mark || len(rows) == len(prompt.Questions) {
			continue
		}
		q := prompt.Questions[len(rows)]
		if len(tokens) == 0 {
			return nil, nil, nil, fmt.Errorf("question %q: nothing stands before the mark", q.Name)
		}
		ids, err = p.labelIDs(q.Labels)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("question %q: %w", q.Name, err)
		}
		rows, labels = append(rows, len(tokens)-1), append(labels, ids)
	}
	return tokens, rows, labels, nil
}

func (p *CausalLM) encodePiece(piece decision.Piece, first bool) ([]int32, error) {
	if piece.Text == "" {
		return nil, nil
	}
	if first {
		return p.Tokenizer.EncodeRaw(piece.Text, false)
	}
	return p.Tokenizer.EncodeInner(piece.Text, piece.Plain)
}

// labelIDs are the tokens of labels, which must be different ones.
func (p *CausalLM) labelIDs(labels []string) ([]int32, error) {
	unknown, has := p.Tokenizer.SpecialID("unk_token")
	all := make([]int32, len(labels))
	for i, label := range labels {
		ids, err := p.Tokenizer.EncodeRaw(label, false)
		if err != nil {
			return nil, err
		}
		if len(ids) != 1 || has && ids[0] == unknown || slices.Contains(all[:i], ids[0]) {
			return nil, fmt.Errorf("the labels %q are not different single tokens of this model", labels)
		}
		all[i] = ids[0]
	}
	return all, nil
}

// Answer answers the questions of all requests together: for each request, an object for JSON by name of the question.
func (p *Decider) Answer(ctx context.Context, all []Asked) ([]*jinja.Dict, error) {
	var samples []*rl.Sample
	for _, a := range all {
		samples = append(samples, a.samples...)
	}
	logProbs, err := p.LogProbs(ctx, samples)
	if err != nil {
		return nil, err
	}
	answers := make([]*jinja.Dict, len(all))
	for i, a := range all {
		answers[i] = jinja.NewDict()
		for j, q := range a.questions {
			answers[i].Set(q.Name, q.Answer(Softmax(logProbs[j], p.Asker.TemperatureOf(q.Type))))
		}
		logProbs = logProbs[len(a.questions):]
	}
	return answers, nil
}
