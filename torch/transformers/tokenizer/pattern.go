package tokenizer

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The library that splits texts backtracks over regular expressions, and ends the process if one match takes more than
// 10,000,000 backtracking steps. So the steps of a pattern are bounded here before the library sees a text: as a
// polynomial in the text's length, reduced to its highest power.

// maxSteps is the maximum for one match, well below the library's limit.
const maxSteps = 8e6

// errSteps is the error of a pattern whose steps double with each character.
var errSteps = errors.New("it repeats a group that can match in several ways, which takes time without bound")

// steps is factor·nᵖᵒʷᵉʳ for a text of n characters.
type steps struct {
	factor float64
	power  int
}

func (a steps) plus(b steps) steps {
	switch {
	case a.power > b.power:
		return a
	case a.power < b.power:
		return b
	}
	return steps{a.factor + b.factor, a.power}
}

func (a steps) times(b steps) steps { return steps{a.factor * b.factor, a.power + b.power} }

// longest is the length of a text that stays below maxSteps.
func (a steps) longest() int {
	if a.power == 0 {
		if a.factor > maxSteps {
			return 0
		}
		return math.MaxInt
	}
	return int(math.Pow(maxSteps/a.factor, 1/float64(a.power)))
}

// patternSteps returns the steps of one match of a pattern in Oniguruma's syntax.
func patternSteps(pattern string) (steps, error) {
	p := patternParser{rest: pattern}
	branches, err := p.branches()
	if err == nil && p.rest != "" {
		err = errors.New("a bracket is closed that was not opened")
	}
	if err != nil {
		return steps{}, err
	}
	return branchSteps(branches, false)
}

// piece is a part of a pattern with its quantifier.
type piece struct {
	min, max  int       // number of repetitions; max -1 is unbounded
	atomic    bool      // it never backtracks
	assertion bool      // it consumes no text
	branches  [][]piece // of a group; nil for a character
}

// unbounded stands for an unlimited number of repetitions.
const unbounded = 64

// fixed reports whether the piece can match a text in one way only.
func (p piece) fixed() bool {
	if p.assertion || p.atomic {
		return true
	}
	return p.min == p.max && (len(p.branches) == 0 || len(p.branches) == 1 && !slices.ContainsFunc(p.branches[0], func(q piece) bool { return !q.fixed() }))
}

// once is the piece without its quantifier.
func (p piece) once() piece {
	p.min, p.max = 1, 1
	return p
}

// branchSteps returns the steps of alternatives. fails means that the following part may fail, so that every way is
// tried.
func branchSteps(branches [][]piece, fails bool) (steps, error) {
	sum := steps{}
	for _, sequence := range branches {
		s, err := sequenceSteps(sequence, fails)
		if err != nil {
			return s, err
		}
		sum = sum.plus(s)
	}
	return sum, nil
}

func sequenceSteps(sequence []piece, fails bool) (steps, error) {
	rest, last := steps{factor: 1}, steps{} // last is done once: nothing can fail any more
	for _, p := range slices.Backward(sequence) {
		again := fails && !p.atomic && !p.assertion
		own, err := p.steps(again)
		if err != nil {
			return own, err
		}
		canFail := p.assertion || p.min > 0
		switch {
		case again:
			rest = own.times(rest)
		case fails || canFail:
			rest = own.plus(rest)
		default:
			last = own.plus(last)
		}
		fails = fails || canFail
	}
	return rest.plus(last), nil
}

// steps returns the steps of one piece; again means that all its ways are tried.
func (p piece) steps(again bool) (steps, error) {
	one := steps{factor: 1}
	if len(p.branches) > 0 {
		var err error
		if one, err = branchSteps(p.branches, again); err != nil {
			return one, err
		}
	}
	many := p.max < 0 || p.max-p.min > unbounded
	times := steps{factor: float64(p.max - p.min + 1)}
	if many {
		times = steps{factor: 1, power: 1}
	}
	switch {
	case p.assertion || p.max == 1 && p.min == 1:
		return one, nil
	case !again && len(p.branches) == 0:
		return one, nil
	case !again:
		return one.times(times), nil
	case p.once().fixed():
		return one.times(times), nil
	case many:
		return one, errSteps
	}
	all := steps{factor: 1}
	for range max(p.max, 1) {
		all = all.times(one)
	}
	return all.times(times), nil
}

// patternParser reads the structure of a pattern that determines its steps. The meaning of characters and classes does
// not matter.
type patternParser struct {
	rest  string
	depth int
}

// maxPatternDepth bounds nested groups.
const maxPatternDepth = 100

func (p *patternParser) take(prefix string) bool {
	rest, ok := strings.CutPrefix(p.rest, prefix)
	if ok {
		p.rest = rest
	}
	return ok
}

// branches reads alternatives up to a closing bracket, which it does not consume, or the end.
func (p *patternParser) branches() ([][]piece, error) {
	if p.depth++; p.depth > maxPatternDepth {
		return nil, errors.New("its groups stand too deep in one another")
	}
	defer func() { p.depth-- }()
	all := [][]piece{nil}
	for p.rest != "" && p.rest[0] != ')' {
		if p.take("|") {
			all = append(all, nil)
			continue
		}
		one, ok, err := p.atom()
		if err != nil {
			return nil, err
		}
		if ok {
			last := len(all) - 1
			all[last] = append(all[last], p.quantified(one))
		}
	}
	return all, nil
}

// atom reads what a quantifier may follow; false for nothing, such as a comment.
func (p *patternParser) atom() (piece, bool, error) {
	one := piece{min: 1, max: 1}
	switch {
	case p.take("("):
		return p.group()
	case p.take("["):
		return one, true, p.class()
	case p.take("^"), p.take("$"):
		one.assertion = true
		return one, true, nil
	case p.take(`\`):
		return p.escape()
	}
	_, width := utf8.DecodeRuneInString(p.rest)
	p.rest = p.rest[width:]
	return one, true, nil
}

func (p *patternParser) group() (piece, bool, error) {
	one := piece{min: 1, max: 1}
	switch {
	case p.take("?="), p.take("?!"), p.take("?<="), p.take("?<!"):
		one.assertion = true
	case p.take("?>"):
		one.atomic = true
	case p.take("?:"), !strings.HasPrefix(p.rest, "?"):
	case p.take("?<"):
		if _, p.rest, _ = strings.Cut(p.rest, ">"); p.rest == "" {
			return one, false, errors.New("a group's name does not end")
		}
	default: // flags, for a group or for what follows
		flags := strings.TrimLeft(p.rest[1:], "imxsadu-")
		if strings.HasPrefix(flags, ")") {
			p.rest = flags[1:]
			return one, false, nil
		}
		if !strings.HasPrefix(flags, ":") {
			return one, false, errors.New("it has a group that begins with (" + p.rest[:1] + flags[:min(1, len(flags))] + ", which is not known here")
		}
		p.rest = flags[1:]
	}
	var err error
	if one.branches, err = p.branches(); err != nil {
		return one, false, err
	}
	if !p.take(")") {
		return one, false, errors.New("a bracket does not close")
	}
	return one, true, nil
}

// class reads up to the bracket that closes a class; classes may be nested.
func (p *patternParser) class() error {
	p.take("^")
	for first, depth := true, 1; p.rest != ""; first = false {
		switch {
		case p.take(`\`):
			_, width := utf8.DecodeRuneInString(p.rest)
			p.rest = p.rest[width:]
			continue
		case strings.HasPrefix(p.rest, "["):
			depth++
		case strings.HasPrefix(p.rest, "]") && !first:
			if depth--; depth == 0 {
				p.rest = p.rest[1:]
				return nil
			}
		}
		p.rest = p.rest[1:]
	}
	return errors.New("a class does not close")
}

func (p *patternParser) escape() (piece, bool, error) {
	one := piece{min: 1, max: 1}
	if p.rest == "" {
		return one, false, errors.New(`it ends in \`)
	}
	c, width := utf8.DecodeRuneInString(p.rest)
	p.rest = p.rest[width:]
	switch {
	case strings.ContainsRune("bBAzZG", c):
		one.assertion = true
	case strings.ContainsRune("kg123456789", c):
		return one, false, errors.New("it refers to one of its groups")
	case strings.ContainsRune("pPx", c) && strings.HasPrefix(p.rest, "{"):
		_, p.rest, _ = strings.Cut(p.rest, "}")
	}
	return one, true, nil
}

// quantified reads the quantifiers after a piece.
func (p *patternParser) quantified(one piece) piece {
	for {
		from, to, possessive, ok := p.quantifier()
		if !ok {
			return one
		}
		if one.min != 1 || one.max != 1 || one.atomic {
			one = piece{branches: [][]piece{{one}}}
		}
		one.min, one.max = from, to
		if !p.take("?") && possessive && p.take("+") {
			one.atomic = true
		}
	}
}

func (p *patternParser) quantifier() (from, to int, possessive, ok bool) {
	switch {
	case p.take("*"):
		return 0, -1, true, true
	case p.take("+"):
		return 1, -1, true, true
	case p.take("?"):
		return 0, 1, true, true
	}
	inner, rest, closed := strings.Cut(strings.TrimPrefix(p.rest, "{"), "}")
	if !closed || !strings.HasPrefix(p.rest, "{") {
		return 0, 0, false, false
	}
	low, high, isRange := strings.Cut(inner, ",")
	from, errLow := strconv.Atoi(low)
	to, errHigh := strconv.Atoi(high)
	switch {
	case low == "" && errHigh == nil && isRange: // {,n}
		from = 0
	case errLow != nil:
		return 0, 0, false, false // a bracket as a character
	case !isRange:
		to = from
	case high == "":
		to = -1
	case errHigh != nil:
		return 0, 0, false, false
	}
	if p.rest = rest; to >= 0 {
		from, to = min(from, to), max(from, to)
	}
	return from, to, false, true
}
