package options

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Range is an interval of numbers; the zero Range contains all.
type Range struct {
	low, high         float64
	openLow, openHigh bool
	zeroToo           bool
	bounded           bool
}

// ParseRange reads an interval such as "(0,1]", "[1,)" or "0|[1,9]"; "" contains all numbers.
func ParseRange(text string) (Range, error) {
	if text == "" {
		return Range{}, nil
	}
	r := Range{low: math.Inf(-1), high: math.Inf(1), bounded: true}
	interval, zero := strings.CutPrefix(text, "0|")
	r.zeroToo = zero
	low, high, ok := strings.Cut(interval, ",")
	wrong := fmt.Errorf("range %q is not an interval such as (0,1] or [1,)", text)
	if !ok || !strings.ContainsAny(low[:min(1, len(low))], "([") || !strings.HasSuffix(high, ")") && !strings.HasSuffix(high, "]") {
		return Range{}, wrong
	}
	r.openLow, r.openHigh = low[0] == '(', high[len(high)-1] == ')'
	for _, end := range []struct {
		text string
		into *float64
	}{{low[1:], &r.low}, {high[:len(high)-1], &r.high}} {
		if end.text == "" {
			continue
		}
		var err error
		if *end.into, err = strconv.ParseFloat(end.text, 64); err != nil {
			return Range{}, wrong
		}
	}
	if !(r.low <= r.high) {
		return Range{}, wrong
	}
	return r, nil
}

// Bounded reports whether the range excludes any number.
func (r Range) Bounded() bool { return r.bounded }

// Holds reports whether x is in the range.
func (r Range) Holds(x float64) bool {
	return !r.bounded || r.zeroToo && x == 0 ||
		(x > r.low || x == r.low && !r.openLow) && (x < r.high || x == r.high && !r.openHigh)
}

// String returns the range in words that complete "must be".
func (r Range) String() string {
	lower, upper := "at least "+plainNumber(r.low), "at most "+plainNumber(r.high)
	if r.openLow {
		lower = "more than " + plainNumber(r.low)
	}
	if r.openHigh {
		upper = "less than " + plainNumber(r.high)
	}
	text := lower + " and " + upper
	switch {
	case math.IsInf(r.high, 1):
		text = lower
	case math.IsInf(r.low, -1):
		text = upper
	case !r.openLow && !r.openHigh:
		text = plainNumber(r.low) + " to " + plainNumber(r.high)
	}
	if r.zeroToo {
		text = "0, or " + text
	}
	return text
}

// plainNumber formats numbers of everyday size without an exponent.
func plainNumber(x float64) string {
	if x == math.Trunc(x) && math.Abs(x) < 1e9 {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}
