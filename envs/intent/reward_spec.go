package intent

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"rltrain/internal/nearest"
)

// ParseRewards reads a comma-separated list of rewards, each with an optional weight
// (default 1, finite and not 0):
//
//	accuracy            1 for the right label, else 0
//	f1=0.5              the first-order change of macro F1
//	calibration         a proper scoring rule of the probabilities
//	expr:'EXPR'=0.2     an expression; the quotes, ' or ", may be left out
//
// Commas inside quotes and brackets belong to the expression. Left without quotes (a
// shell removes them), it ends at the next comma outside brackets and string literals,
// and a single = begins its weight. Spaces around pieces do not matter.
//
// EXPR is written in the language of github.com/expr-lang/expr, restricted to what can
// be differentiated:
//
//	correct      1 when the label scored is the true one, else 0; also a condition
//	confidence   the policy's probability of the label scored
//	entropy      the entropy of the policy's probabilities, nats
//	probs[…]     the probability of a label, by index, name, or label and predicted
//	predicted    the label scored; for == and != and in
//	label        the true label; likewise
//	+ - * / ** ^   abs exp log max min pow sqrt   max(probs) min(probs)
//	c ? a : b    if c { a } else { b }   and or not && || ! == != < <= > >= in
//
// A comparison of probabilities jumps and so has no derivative: it is an error, as is
// everything else outside this list; max, min and abs bend instead. At their kinks the
// derivative is that of the first argument that attains the value, and 0 for abs.
//
// Errors name the piece and, in an expression, the column.
func ParseRewards(spec string, labels []string) (*Rewards, error) {
	if len(labels) == 0 {
		return nil, errors.New("rewards need at least one label")
	}
	r := &Rewards{
		labels:   slices.Clone(labels),
		probs:    make([]float64, len(labels)),
		gradient: make([]float64, len(labels)),
		scratch:  &evaluation{},
	}
	rest, more := spec, true
	for more {
		var piece rewardPiece
		var err error
		if piece, rest, more, err = nextReward(rest); err != nil {
			return nil, err
		}
		rw, err := newReward(piece, labels)
		if err != nil {
			return nil, err
		}
		for _, other := range r.rewards {
			if other.name == rw.name {
				return nil, fmt.Errorf("reward %s is given twice: give it once, with the sum of the weights", hintQuote(rw.name))
			}
		}
		if rw.kind == f1Reward {
			r.f1 = newF1Counts(len(labels))
		}
		if rw.expr != nil {
			r.scratch.values = make([]float64, max(rw.expr.nodes, len(r.scratch.values)))
		}
		r.rewards = append(r.rewards, rw)
	}
	return r, nil
}

// rewardPiece is one reward as written: name, expression of an expr, weight or "".
type rewardPiece struct {
	name, expr string
	isExpr     bool
	weight     string
	weighted   bool
}

var rewardNames = []string{"accuracy", "calibration", "expr", "f1"}

const rewardChoices = "choose from accuracy, f1, calibration and expr:'EXPR'"

func newReward(p rewardPiece, labels []string) (*reward, error) {
	rw := &reward{name: p.name, weight: 1}
	switch p.name {
	case "accuracy":
		rw.kind = accuracyReward
	case "f1":
		rw.kind = f1Reward
	case "calibration":
		rw.kind = calibrationReward
	case "expr":
		if !p.isExpr {
			return nil, fmt.Errorf("reward expr has no expression: write expr:'EXPR'")
		}
		rw.kind, rw.name = exprReward, "expr:"+p.expr
		var err error
		if rw.expr, err = compileReward(p.expr, labels); err != nil {
			return nil, fmt.Errorf("reward %s: %w", hintQuote(rw.name), err)
		}
	case "":
		return nil, fmt.Errorf("the list of rewards has an empty piece: %s", rewardChoices)
	default:
		if p.name == "cmd" || strings.HasPrefix(p.name, "cmd:") {
			return nil, fmt.Errorf("reward %s: a program cannot judge a label policy, which writes no text: %s", hintQuote(p.name), rewardChoices)
		}
		return nil, fmt.Errorf("reward %s is unknown%s: %s", hintQuote(p.name), didYouMean(p.name, rewardNames), rewardChoices)
	}
	if p.weighted {
		weight, err := strconv.ParseFloat(p.weight, 64)
		if err != nil || !finite(weight) || weight == 0 {
			return nil, fmt.Errorf("reward %s has the weight %s: write a finite number other than 0", hintQuote(rw.name), hintQuote(p.weight))
		}
		rw.weight = weight
	}
	return rw, nil
}

// nextReward cuts the first piece off spec; more says that a comma followed it.
func nextReward(spec string) (piece rewardPiece, rest string, more bool, err error) {
	spec = strings.TrimSpace(spec)
	body, isExpr := strings.CutPrefix(spec, "expr:")
	if !isExpr {
		text, rest, more := strings.Cut(spec, ",")
		name, weight, weighted := strings.Cut(text, "=")
		return rewardPiece{name: strings.TrimSpace(name), weight: strings.TrimSpace(weight), weighted: weighted}, rest, more, nil
	}
	body = strings.TrimLeft(body, " ")
	piece = rewardPiece{name: "expr", isExpr: true}
	if body != "" && (body[0] == '\'' || body[0] == '"') {
		end := strings.IndexByte(body[1:], body[0])
		if end < 0 {
			return piece, "", false, fmt.Errorf("reward %s: the quote is not closed", hintQuote(spec))
		}
		piece.expr = body[1 : 1+end]
		text, rest, more := strings.Cut(body[end+2:], ",")
		text = strings.TrimSpace(text)
		if text != "" && (text[0] != '=' || strings.HasPrefix(text, "==")) {
			return piece, "", false, fmt.Errorf("reward %s: %s follows the closing quote: write =WEIGHT, a comma, or quotes around the whole expression", hintQuote(spec), hintQuote(text))
		}
		piece.weight, piece.weighted = strings.CutPrefix(text, "=")
		piece.weight = strings.TrimSpace(piece.weight)
		return piece, rest, more, nil
	}
	end, equals := scanBareExpr(body)
	piece.expr = body[:end]
	if equals >= 0 {
		piece.weight, piece.weighted = strings.TrimSpace(body[equals+1:end]), true
		piece.expr = body[:equals]
	}
	piece.expr = strings.TrimSpace(piece.expr)
	if end < len(body) {
		rest, more = body[end+1:], true
	}
	return piece, rest, more, nil
}

// scanBareExpr finds where an expression without quotes ends, and its first = that is
// no part of an operator (-1 where there is none), both outside brackets and string
// literals.
func scanBareExpr(s string) (end, equals int) {
	equals = -1
	depth := 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '\'', '"':
			closing := strings.IndexByte(s[i+1:], c)
			if closing < 0 {
				return len(s), equals
			}
			i += 1 + closing
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
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
