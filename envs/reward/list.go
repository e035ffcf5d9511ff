package reward

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/nearest"
)

// Options are what all rewards of a list share.
type Options struct {
	// Timeout is how long a Go function or a program may take for one score; 0 is a minute, a negative one an error.
	Timeout time.Duration
	// Critic opens the model that model:DIR names; nil makes such a piece an error.
	Critic func(name string) (envs.Critic, error)
	// NoTruth says that no task verifies the completions: rewards that need that are unknown.
	NoTruth bool
	// Judge is the language model that rewards such as rubrics ask; nil makes them an error.
	Judge envs.Scorer
}

// complete fills in the timeout.
func (o Options) complete() (Options, error) {
	if o.Timeout < 0 {
		return o, fmt.Errorf("rewards: the timeout is %v: it must not be negative", o.Timeout)
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	return o, nil
}

// maxWeight keeps a total within float32 for all values that make sense.
const maxWeight = 1e6

// piece is one reward of a list.
type piece struct {
	of       *Definition
	name     string // as written, in errors and statistics
	argument string
	options  any
	weight   float64
}

// setup is what the reward is told.
func (p piece) setup(o Options, labels []string) Setup {
	return Setup{Argument: p.argument, Options: p.options, Labels: labels, Timeout: o.Timeout, Judge: o.Judge, Critic: o.Critic}
}

// parseList reads a list of the rewards that are known.
func parseList(list string, known []Definition) ([]piece, error) {
	var pieces []piece
	for more := true; more; {
		var w writtenPiece
		var err error
		if w, list, more, err = cutPiece(list, known); err != nil {
			return nil, err
		}
		p, err := w.piece(known)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(pieces, func(other piece) bool { return other.name == p.name }) {
			return nil, fmt.Errorf("reward %s is given twice: give it once, with the sum of the weights", hintQuote(p.name))
		}
		pieces = append(pieces, p)
	}
	return pieces, nil
}

// writtenPiece is a piece before anything in it is checked.
type writtenPiece struct {
	of       *Definition // of NAME:ARGUMENT; else nil
	body     string      // the argument, or all but the weight
	weight   string
	weighted bool
}

func (w writtenPiece) piece(known []Definition) (piece, error) {
	p := piece{of: w.of, argument: w.body, name: w.body, weight: 1}
	if w.of != nil {
		p.name = w.of.Name + ":" + w.body
	} else if err := p.find(w.body, known); err != nil {
		return p, err
	}
	if w.weighted {
		weight, err := strconv.ParseFloat(w.weight, 64)
		if err != nil || !finite(weight) || weight == 0 || math.Abs(weight) > maxWeight {
			return p, fmt.Errorf("reward %s has the weight %s: write a number other than 0 from -1e6 to 1e6", hintQuote(p.name), hintQuote(w.weight))
		}
		p.weight = weight
	}
	return p, nil
}

// find looks up NAME or NAME(option=value,...).
func (p *piece) find(body string, known []Definition) error {
	name, settings, bracket := strings.Cut(body, "(")
	name = strings.TrimSpace(name)
	var names, choices []string
	for i, d := range known {
		if d.Name == name {
			p.of = &known[i]
		}
		names, choices = append(names, d.Name), append(choices, d.Written())
	}
	slices.Sort(choices)
	switch {
	case body == "":
		return fmt.Errorf("the list of rewards has an empty piece: choose from %s", strings.Join(choices, ", "))
	case p.of == nil:
		return fmt.Errorf("reward %s is unknown%s: choose from %s", hintQuote(name), didYouMean(name, names), strings.Join(choices, ", "))
	case p.of.Argument != "":
		return fmt.Errorf("reward %s needs an argument: write %s", name, p.of.Written())
	case bracket && p.of.Options == nil:
		return fmt.Errorf("reward %s has no options", hintQuote(name))
	case bracket && !strings.HasSuffix(settings, ")"):
		return fmt.Errorf("reward %s: the bracket is not closed", hintQuote(body))
	case p.of.Options == nil:
		return nil
	}
	p.options = p.of.Options()
	values, err := cutSettings(strings.TrimSuffix(settings, ")"))
	if err == nil {
		err = values.Set(p.options)
	}
	if check, ok := p.options.(interface{ Check() error }); ok && err == nil {
		err = check.Check()
	}
	if err != nil {
		return fmt.Errorf("reward %s: %w", hintQuote(body), err)
	}
	return nil
}

// cutSettings reads option=value, joined by commas; a value may stand in quotes.
func cutSettings(text string) (envs.Settings, error) {
	values := envs.Settings{}
	for text = strings.TrimSpace(text); text != ""; {
		end, equals := scanBare(text, false)
		if equals < 0 {
			return nil, fmt.Errorf("%s is not option=value", hintQuote(text[:end]))
		}
		name, value := strings.TrimSpace(text[:equals]), strings.TrimSpace(text[equals+1:end])
		if n := len(value); n > 1 && strings.IndexByte("'\"`", value[0]) >= 0 && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		if _, twice := values[name]; twice {
			return nil, fmt.Errorf("option %s is given twice", name)
		}
		values[name] = value
		text = strings.TrimSpace(text[min(len(text), end+1):])
	}
	return values, nil
}

// cutPiece cuts the first piece off a list; more says that a comma followed it.
func cutPiece(list string, known []Definition) (w writtenPiece, rest string, more bool, err error) {
	list = strings.TrimSpace(list)
	body := list
	for i, d := range known {
		if after, found := strings.CutPrefix(list, d.Name+":"); found && d.Argument != "" {
			w.of, body = &known[i], strings.TrimLeft(after, " ")
		}
	}
	if w.of != nil && body != "" && (body[0] == '\'' || body[0] == '"') {
		rest, more, err = w.cutQuoted(body)
	} else {
		rest, more, err = w.cutBare(body)
	}
	if err != nil {
		return w, "", false, fmt.Errorf("reward %s: %w", hintQuote(list), err)
	}
	return w, rest, more, nil
}

// cutQuoted fills in w from text, which begins with a quote.
func (w *writtenPiece) cutQuoted(text string) (rest string, more bool, err error) {
	end := strings.IndexByte(text[1:], text[0])
	if end < 0 {
		return "", false, errors.New("the quote is not closed")
	}
	w.body = text[1 : 1+end]
	after, rest, more := strings.Cut(text[end+2:], ",")
	after = strings.TrimSpace(after)
	if after != "" && (after[0] != '=' || strings.HasPrefix(after, "==")) {
		return "", false, fmt.Errorf("%s follows the closing quote: write =WEIGHT, a comma, or quotes of the other kind around all of it", hintQuote(after))
	}
	w.weight, w.weighted = strings.CutPrefix(after, "=")
	w.weight = strings.TrimSpace(w.weight)
	return rest, more, nil
}

// cutBare fills in w from text without quotes around it.
func (w *writtenPiece) cutBare(text string) (rest string, more bool, err error) {
	brackets := w.of == nil || w.of.brackets
	end, equals := scanBare(text, brackets)
	w.body = text[:end]
	if equals >= 0 {
		w.body, w.weight, w.weighted = text[:equals], strings.TrimSpace(text[equals+1:end]), true
		if word := w.body[strings.LastIndexByte(w.body, ' ')+1:]; !brackets && strings.HasPrefix(word, "-") {
			return "", false, fmt.Errorf("it is not clear whether = belongs to %s or begins the weight: put quotes around the command, as in %s:'...'=WEIGHT", word, w.of.Name)
		}
	}
	w.body = strings.TrimSpace(w.body)
	if end < len(text) {
		rest, more = text[end+1:], true
	}
	return rest, more, nil
}

// scanBare finds where a piece without quotes around it ends, and its first = that is no
// part of an operator (-1 where there is none), both outside of string literals and, where
// they count, of brackets.
func scanBare(s string, brackets bool) (end, equals int) {
	equals = -1
	depth := 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '\'', '"', '`':
			closing := literalEnd(s[i:])
			if closing < 0 {
				return len(s), equals
			}
			i += closing
		case '(', '[', '{':
			if brackets {
				depth++
			}
		case ')', ']', '}':
			if brackets {
				depth--
			}
		case '=':
			operator := i > 0 && strings.IndexByte("=!<>", s[i-1]) >= 0 || i+1 < len(s) && s[i+1] == '='
			if !operator && depth <= 0 && equals < 0 {
				equals = i
			}
		case ',':
			if depth <= 0 {
				return i, equals
			}
		}
	}
	return len(s), equals
}

// literalEnd is where the quote closes that s begins with, -1 where it does not.
func literalEnd(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == s[0]:
			return i
		case s[i] == '\\' && s[0] != '`':
			i++
		}
	}
	return -1
}

// names of pieces, in their order.
func names(pieces []piece) []string {
	list := make([]string, len(pieces))
	for i, p := range pieces {
		list[i] = p.name
	}
	return list
}

// hintQuote quotes s on one line, cut where it is long.
func hintQuote(s string) string {
	if runes := []rune(s); len(runes) > 80 {
		return strconv.Quote(string(runes[:80])) + "…"
	}
	return strconv.Quote(s)
}

// didYouMean returns `, did you mean "x"?` for the known name nearest to name, "" where none is near.
func didYouMean(name string, known []string) string {
	if near := nearest.Name(name, known); near != "" {
		return fmt.Sprintf(", did you mean %q?", near)
	}
	return ""
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
