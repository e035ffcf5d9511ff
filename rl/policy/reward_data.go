package policy

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/rl"
)

// Units turns preferences and rankings into units for a reward model: a sample per response to a prompt, the best first. The
// column margin says by how much the first should be better. A response that does not fit into MaxLength tokens with its
// prompt drops its unit.
func (m *RewardModel) Units(examples iter.Seq2[chat.Example, error]) (Preferences, error) {
	var out Preferences
	var err error
	out.Null, err = inBatches(examples, func(batch []chat.Example) error { return m.encodeUnits(&out, batch) })
	if left := out.Dropped + out.Equal; err == nil && len(out.Units) == 0 && left > 0 {
		err = fmt.Errorf("none of %d rows can be trained on, the first is %s: %d are longer than %d tokens (raise max_length), %d have the same response twice", left, out.First, out.Dropped, m.MaxLength, out.Equal)
	}
	return out, err
}

// encodeUnits adds the units of examples to out, in their order.
func (m *RewardModel) encodeUnits(out *Preferences, batch []chat.Example) error {
	units, errs := make([][]*rl.Sample, len(batch)), make([]error, len(batch))
	onAllProcessors(len(batch), func(i int) { units[i], errs[i] = m.unit(batch[i]) })
	for i, unit := range units {
		e := batch[i]
		switch {
		case errors.Is(errs[i], errLonger):
			out.Dropped++
			out.skip(e)
		case errs[i] != nil:
			return fmt.Errorf("%s:%d: %w", e.File, e.Line, errs[i])
		case slices.ContainsFunc(unit[1:], func(x *rl.Sample) bool { return slices.Equal(x.Tokens, unit[0].Tokens) }):
			out.Equal++
			out.skip(e)
		default:
			out.add(unit)
		}
	}
	return nil
}

func (m *RewardModel) unit(e chat.Example) ([]*rl.Sample, error) {
	answers := e.Ranked
	if e.Format == chat.Preference {
		answers = answersOf(e)
	}
	var unit []*rl.Sample
	for _, answer := range answers {
		ids, err := m.Encode(e.Prompt, answer)
		if err != nil {
			return nil, err
		}
		unit = append(unit, &rl.Sample{Tokens: ids, Actions: []int32{0}})
	}
	margin, err := marginOf(e)
	unit[0].Margin = margin
	return unit, err
}

// marginOf reads the column margin, 0 if there is none.
func marginOf(e chat.Example) (float64, error) {
	value, ok := e.Extra.Get("margin")
	if !ok || value == nil {
		return 0, nil
	}
	margin, err := strconv.ParseFloat(fmt.Sprint(value), 64)
	if err != nil || math.IsNaN(margin) || math.IsInf(margin, 0) {
		return 0, fmt.Errorf("column \"margin\": %v is not a number", value)
	}
	return margin, nil
}
