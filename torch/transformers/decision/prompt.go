package decision

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// A decision template writes these where the model is read, and where text is to be split.
const (
	markToken  = "<|mark|>"
	splitToken = "<|split|>"
)

// Control tokens in a request stand between these while a template is rendered.
const (
	quoteStart = "\U000f0000"
	quoteEnd   = "\U000f0001"
)

// Piece is a part of a prompt, whose tokens do not depend on the parts around it.
type Piece struct {
	Text  string
	Plain bool // control tokens in it are text
	Mark  bool // the answer to a question is read after it
}

// Prompt is a prompt and the questions that are read in it, in the order of its marks.
type Prompt struct {
	Pieces    []Piece
	Questions []Question
}

// Renderer is what a model's chat template is rendered with.
type Renderer struct {
	Chat     *chat.Templates
	Special  map[string]string // the tokenizer's, such as bos_token
	Controls func() []string   // control tokens of the tokenizer
	Now      time.Time         // for templates that print the date
}

// Asker writes the prompts of a model. It is safe for concurrent use.
type Asker struct {
	Config
	renderer Renderer
	guard    func() guard // made for the first request: a tokenizer may have thousands of control tokens
}

// Asker asks by the settings of c.
func (c Config) Asker(r Renderer) *Asker {
	return &Asker{c, r, sync.OnceValue(func() guard { return newGuard(append(r.Controls(), markToken, splitToken), c.sanitizes()) })}
}

// Prompts are the prompts of a request: one a question, unless the model's decision template has all in one.
func (a *Asker) Prompts(state jinja.Value, questions []Question) ([]Prompt, error) {
	c, r, guard := &a.Config, a.renderer, a.guard()
	var prompts []Prompt
	for group := range slices.Chunk(questions, c.perPrompt(len(questions))) {
		o := chat.Options{AddGenerationPrompt: true, Special: r.Special, Now: r.Now, Variables: map[string]jinja.Value{"enable_thinking": false}}
		templates, message := c.template, ""
		if templates == nil {
			text, err := general(state, group[0])
			if err != nil {
				return nil, err
			}
			templates, message = r.Chat, guard.text(text)
		} else {
			o.Variables["state"] = guard.value(state)
			o.Variables["question"] = guard.value(group[0].value())
			all := &jinja.List{}
			for _, q := range group {
				all.Items = append(all.Items, guard.value(q.value()))
			}
			o.Variables["questions"] = all
		}
		rendered, err := templates.Render([]chat.Message{chat.NewMessage("user", message)}, o)
		if err != nil {
			return nil, err
		}
		p := Prompt{guard.pieces(rendered.Text), group}
		marks := 0
		for _, piece := range p.Pieces {
			if piece.Mark {
				marks++
			}
		}
		if marks < len(group) {
			return nil, fmt.Errorf("%s writes %d %s for %d questions", TemplateFile, marks, markToken, len(group))
		}
		prompts = append(prompts, p)
	}
	return prompts, nil
}

func (c *Config) perPrompt(questions int) int {
	if c.template != nil && c.together {
		return questions
	}
	return 1
}

// value is a question as templates see it.
func (q Question) value() jinja.Value {
	d := jinja.NewDict()
	list := func(texts []string) *jinja.List {
		l := &jinja.List{}
		for _, text := range texts {
			l.Items = append(l.Items, text)
		}
		return l
	}
	d.Set("name", q.Name)
	d.Set("type", q.Type)
	d.Set("instructions", q.Instructions)
	d.Set("options", list(q.Options))
	d.Set("labels", list(q.Labels))
	d.Set("descriptions", &jinja.List{Items: q.Descriptions})
	return d
}

// general is the question to a chat model that has no template for decisions, as transformers asks it.
func general(state jinja.Value, q Question) (string, error) {
	var failed error
	text := func(v jinja.Value) string {
		switch v := v.(type) {
		case nil:
			return ""
		case string:
			return v
		}
		written, err := jinja.JSON(v)
		if err != nil {
			failed = err
		}
		return written
	}
	lines := []string{text(q.Instructions)}
	for i, option := range q.Options {
		label, described := q.Labels[i], text(q.Descriptions[i])
		switch {
		case q.Type == Noul && described == "" && slices.Equal(q.Labels, []string{"Yes", "No"}):
			continue
		case q.Type == Noul && described == "":
			described = option
		case q.Type == Choice && described == "":
			described = option
		case q.Type == Choice:
			described = option + ": " + described
		}
		if q.Type == Noul {
			lines = append(lines, label+": "+described)
		} else {
			lines = append(lines, label+". "+described)
		}
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "" })
	first, last := q.Labels[0], q.Labels[len(q.Labels)-1]
	how := fmt.Sprintf("Answer %s or %s only.", first, last)
	if q.Type != Noul {
		sign, of := "label", "level"
		if strings.Join(q.Labels, "") == letters[:min(len(q.Labels), len(letters))] {
			sign = "letter"
		}
		if q.Type == Choice {
			of = "option"
		}
		how = fmt.Sprintf("Answer with the %s of the %s that fits best (%s to %s) only.", sign, of, first, last)
	}
	return text(state) + "\n\n" + strings.Join(lines, "\n") + "\n" + how, failed
}

// guard keeps control tokens in the texts of a request from being read as such.
type guard struct {
	controls, parts *regexp.Regexp
	sanitize        bool
}

func newGuard(controls []string, sanitize bool) guard {
	slices.SortStableFunc(controls, func(a, b string) int { return len(b) - len(a) })
	quoted := make([]string, len(controls))
	for i, token := range controls {
		quoted[i] = regexp.QuoteMeta(token)
	}
	any := strings.Join(quoted, "|")
	sentinels := regexp.QuoteMeta(markToken) + "|" + regexp.QuoteMeta(splitToken)
	g := guard{regexp.MustCompile(any), regexp.MustCompile(sentinels), sanitize}
	if sanitize {
		g.parts = regexp.MustCompile(quoteStart + "(?:" + any + ")" + quoteEnd + "|[" + quoteStart + quoteEnd + "]|" + sentinels)
	}
	return g
}

var noQuotes = strings.NewReplacer(quoteStart, "", quoteEnd, "")
var noSentinels = strings.NewReplacer(markToken, "", splitToken, "")

func (g guard) text(text string) string {
	if !g.sanitize {
		return noSentinels.Replace(text)
	}
	return g.controls.ReplaceAllStringFunc(noQuotes.Replace(text), func(token string) string { return quoteStart + token + quoteEnd })
}

// value guards all texts of a value but the keys of objects.
func (g guard) value(v jinja.Value) jinja.Value {
	switch v := v.(type) {
	case string:
		return g.text(v)
	case *jinja.List:
		out := &jinja.List{}
		for _, item := range v.Items {
			out.Items = append(out.Items, g.value(item))
		}
		return out
	case *jinja.Dict:
		out := jinja.NewDict()
		for _, key := range v.Keys() {
			item, _ := v.Get(key)
			out.Set(key, g.value(item))
		}
		return out
	}
	return v
}

// pieces splits a rendered text. Without a mark the model is read at its end.
func (g guard) pieces(text string) []Piece {
	var all []Piece
	marked := false
	at := 0
	for _, found := range g.parts.FindAllStringIndex(text, -1) {
		all = append(all, Piece{Text: text[at:found[0]]})
		switch part := text[found[0]:found[1]]; {
		case part == markToken:
			all[len(all)-1].Mark, marked = true, true
		case len(part) > len(quoteStart) && strings.HasPrefix(part, quoteStart):
			all = append(all, Piece{Text: noQuotes.Replace(part), Plain: true})
		}
		at = found[1]
	}
	all = append(all, Piece{Text: text[at:]})
	if !marked {
		all[len(all)-1].Mark = true
	}
	return all
}
