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
	// Default is the list that stands for an empty one; "" makes an empty list an error.
	Default string
	// Timeout is how long a task's own reward or a program may take for one judgement;
	// 0 is a minute, a negative one an error.
	Timeout time.Duration
	// Critic opens the model that model:NAME names; nil makes such a piece an error.
	Critic func(name string) (envs.Critic, error)
	// Judge answers the questions of rubrics; nil makes such a piece an error.
	Judge envs.Scorer
}

func (o Options) timeout() (time.Duration, error) {
	switch {
	case o.Timeout < 0:
		return 0, fmt.Errorf("rewards: the timeout is %v: it must not be negative", o.Timeout)
	case o.Timeout == 0:
		return time.Minute, nil
	}
	return o.Timeout, nil
}

// maxWeight keeps a total within float32 for all values that make sense.
const maxWeight = 1e6

type kind int

const (
	kindOwn kind = iota
	kindExpr
	kindCmd
	kindModel
	kindRubric
)

// prefixes of the kinds, in a list and in a reward's name.
var prefixes = [...]string{kindExpr: "expr:", kindCmd: "cmd:", kindModel: "model:", kindRubric: "rubric:"}

// reserved are the names that begin the other kinds of pieces.
var reserved = []string{"expr", "cmd", "model", "rubric"}

// piece is one reward of a list.
type piece struct {
	kind   kind
	name   string // in errors and statistics
	body   string // what follows the prefix, without quotes; of an own reward its name
	weight float64
}

// parseList reads a list of rewards, of which the names in known are the task's own.
func parseList(list string, o Options, known []string) ([]piece, error) {
	if strings.TrimSpace(list) == "" {
		list = o.Default
	}
	var pieces []piece
	for more := true; more; {
		var w writtenPiece
		var err error
		if w, list, more, err = cutPiece(list); err != nil {
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
	kind     kind
	body     string
	weight   string
	weighted bool
}

func (w writtenPiece) piece(known []string) (piece, error) {
	p := piece{kind: w.kind, body: w.body, name: prefixes[w.kind] + w.body, weight: 1}
	choices := strings.Join(append(slices.Sorted(slices.Values(known)), "expr:'EXPR'", "cmd:'PROGRAM ARGS'"), ", ") + " and model:DIR"
	switch {
	case w.kind == kindModel && w.body == "" || w.body == "model":
		return p, errors.New("reward model has no model: write model:DIR")
	case w.kind == kindRubric && w.body == "" || w.body == "rubric":
		return p, errors.New("reward rubric has no file: write rubric:FILE")
	case w.kind != kindOwn || slices.Contains(known, w.body):
	case w.body == "":
		return p, fmt.Errorf("the list of rewards has an empty piece: choose from %s", choices)
	case w.body == "expr":
		return p, errors.New("reward expr has no expression: write expr:'EXPR'")
	case w.body == "cmd":
		return p, errors.New("reward cmd has no program: write cmd:'PROGRAM ARGS'")
	default:
		return p, fmt.Errorf("reward %s is unknown%s: choose from %s", hintQuote(w.body), didYouMean(w.body, append(reserved[:len(reserved):len(reserved)], known...)), choices)
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

// cutPiece cuts the first piece off a list; more says that a comma followed it.
func cutPiece(list string) (w writtenPiece, rest string, more bool, err error) {
	list = strings.TrimSpace(list)
	body := list
	for _, kind := range []kind{kindExpr, kindCmd, kindModel, kindRubric} {
		if after, found := strings.CutPrefix(list, prefixes[kind]); found {
			w.kind, body = kind, strings.TrimLeft(after, " ")
		}
	}
	if w.kind != kindOwn && body != "" && (body[0] == '\'' || body[0] == '"') {
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
	end, equals := scanBare(text, w.kind == kindExpr)
	w.body = text[:end]
	if equals >= 0 {
		w.body, w.weight, w.weighted = text[:equals], strings.TrimSpace(text[equals+1:end]), true
		if word := w.body[strings.LastIndexByte(w.body, ' ')+1:]; w.kind == kindCmd && strings.HasPrefix(word, "-") {
			return "", false, fmt.Errorf("it is not clear whether = belongs to %s or begins the weight: put quotes around the command, as in cmd:'PROGRAM ARGS'=WEIGHT", word)
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
