package reward

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/nearest"
)

// Options are shared by all rewards of a list.
type Options struct {
	// Timeout limits one call of a Go function or program; 0 is a minute, negative is an error.
	Timeout time.Duration
	// Warn gets a line at the first timeout of each reward; nil drops it.
	Warn func(line string)
	// Critic opens the model named by model:DIR; nil makes such a reward an error.
	Critic func(name string) (envs.Critic, error)
	// NoTruth means that no task verifies the completions; rewards with NeedsTruth are then unknown.
	NoTruth bool
	// Judge is the language model for rewards such as rubrics; nil makes them an error. A method JudgeCount() map[string]int, if
	// it has one, says what it has done since the last call.
	Judge envs.Scorer
}

// complete sets the default timeout.
func (o Options) complete() (Options, error) {
	if o.Timeout < 0 {
		return o, fmt.Errorf("rewards: timeout %v is negative", o.Timeout)
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	return o, nil
}

// maxWeight keeps totals within float32 for all plausible rewards.
const maxWeight = 1e6

// piece is one reward of a list.
type piece struct {
	of       *Definition
	name     string // as written, in errors and metrics
	argument string
	options  any
	weight   float64
}

// setup returns the Setup for the reward.
func (p piece) setup(o Options, labels []string) Setup {
	return Setup{Argument: p.argument, Options: p.options, Labels: labels, Timeout: o.Timeout, Late: p.late(o.Warn), Judge: o.Judge, Critic: o.Critic}
}

// late returns what to call with a score's timeout: it warns of the first.
func (p piece) late(warn func(string)) func(error) {
	var once sync.Once
	return func(err error) {
		if warn != nil {
			once.Do(func() {
				warn(fmt.Sprintf("warning: raise --reward-timeout if reward %s needs more time: %v; samples without a reward are left out", p.name, err))
			})
		}
	}
}

// parseList reads a list of known rewards.
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
			return nil, fmt.Errorf("reward %s occurs twice; write it once, with the sum of the weights", hintQuote(p.name))
		}
		pieces = append(pieces, p)
	}
	return pieces, nil
}

// writtenPiece is a piece before validation.
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
			return p, fmt.Errorf("reward %s has weight %s; use a number from -1e6 to 1e6 other than 0", hintQuote(p.name), hintQuote(w.weight))
		}
		p.weight = weight
	}
	return p, nil
}

// commandFor is the command that runs a file of the given name; "" for any other text.
func commandFor(text string) string {
	first, _, _ := strings.Cut(text, " ")
	switch ext := filepath.Ext(text); {
	case strings.HasPrefix(text, "./"), first == "python3", first == "python", first == "sh", first == "node":
		return text
	case ext == ".py":
		return "python3 " + text
	case ext == ".sh":
		return "sh " + text
	}
	return ""
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
		return fmt.Errorf("the list of rewards has an empty item; choose from %s", strings.Join(choices, ", "))
	case p.of == nil:
		hint := nearest.Hint(name, names, strconv.Quote)
		if command := commandFor(body); command != "" && slices.Contains(names, "cmd") {
			hint = "; to run a program write cmd:'" + command + "'"
		}
		return fmt.Errorf("unknown reward %s%s; choose from %s", hintQuote(name), hint, strings.Join(choices, ", "))
	case p.of.Argument != "":
		return fmt.Errorf("reward %s needs an argument; write %s", name, p.of.Written())
	case bracket && p.of.Options == nil:
		return fmt.Errorf("reward %s has no options", hintQuote(name))
	case bracket && !strings.HasSuffix(settings, ")"):
		return fmt.Errorf("reward %s: unclosed bracket", hintQuote(body))
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

// cutSettings reads option=value, joined by commas; values may be quoted.
func cutSettings(text string) (envs.Settings, error) {
	values := envs.Settings{}
	for text = strings.TrimSpace(text); text != ""; {
		end, equals := scanBare(text, false)
		if equals < 1 {
			return nil, fmt.Errorf("%s is not option=value", hintQuote(text[:end]))
		}
		name, value := strings.TrimSpace(text[:equals]), strings.TrimSpace(text[equals+1:end])
		if n := len(value); n > 1 && strings.IndexByte("'\"`", value[0]) >= 0 && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		if _, twice := values[name]; twice {
			return nil, fmt.Errorf("option %s occurs twice", name)
		}
		values[name] = value
		text = strings.TrimSpace(text[min(len(text), end+1):])
	}
	return values, nil
}

// cutPiece cuts the first piece off a list; more means that a comma followed it.
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

// cutQuoted fills w from text, which starts with a quote.
func (w *writtenPiece) cutQuoted(text string) (rest string, more bool, err error) {
	end := strings.IndexByte(text[1:], text[0])
	if end < 0 {
		return "", false, errors.New("unclosed quote")
	}
	w.body = text[1 : 1+end]
	after, rest, more := strings.Cut(text[end+2:], ",")
	after = strings.TrimSpace(after)
	if after != "" && (after[0] != '=' || strings.HasPrefix(after, "==")) {
		return "", false, fmt.Errorf("unexpected %s after the closing quote; write =WEIGHT or a comma, or use the other kind of quotes", hintQuote(after))
	}
	w.weight, w.weighted = strings.CutPrefix(after, "=")
	w.weight = strings.TrimSpace(w.weight)
	return rest, more, nil
}

// cutBare fills w from unquoted text.
func (w *writtenPiece) cutBare(text string) (rest string, more bool, err error) {
	brackets := w.of == nil || w.of.brackets
	end, equals := scanBare(text, brackets)
	w.body = text[:end]
	if equals >= 0 {
		w.body, w.weight, w.weighted = text[:equals], strings.TrimSpace(text[equals+1:end]), true
		if word := w.body[strings.LastIndexByte(w.body, ' ')+1:]; !brackets && strings.HasPrefix(word, "-") {
			return "", false, fmt.Errorf("the = may belong to %s or start the weight; quote the command: %s:'...'=WEIGHT", word, w.of.Name)
		}
	}
	w.body = strings.TrimSpace(w.body)
	if end < len(text) {
		rest, more = text[end+1:], true
	}
	return rest, more, nil
}

// scanBare finds the end of an unquoted piece and its first = that is not part of an operator (-1 if none), both outside
// string literals and, if brackets is set, outside brackets.
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

// literalEnd is the position of the quote that closes the literal at the start of s, or -1.
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

// names returns the names of pieces, in order.
func names(pieces []piece) []string {
	list := make([]string, len(pieces))
	for i, p := range pieces {
		list[i] = p.name
	}
	return list
}

// hintQuote quotes s on one line and truncates it.
func hintQuote(s string) string {
	if runes := []rune(s); len(runes) > 80 {
		return strconv.Quote(string(runes[:80])) + "…"
	}
	return strconv.Quote(s)
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
