package rollout

import (
	"math"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
)

// records are the completions of the first prompts of a step, all of them if prompts is negative. samples are those made of
// the groups, nil if the turns only went into a buffer.
func records(p *policy.CausalLM, at rl.At, groups []rl.Group, samples [][]*rl.Sample, greedy []float64, prompts int) ([]rl.Record, error) {
	if prompts < 0 || prompts > len(groups) {
		prompts = len(groups)
	}
	var all []rl.Record
	for g, group := range groups[:prompts] {
		for i, t := range group {
			r := rl.Record{Step: at.Step + 1, Version: t.Version, Prompt: t.Prompt, Sample: t.Index, Stop: string(t.Stop), Reward: rl.Number(t.Reward()), Advantage: rl.Number(math.NaN())}
			if err := fillTexts(p, t, &r); err != nil {
				return nil, err
			}
			if t.Info != nil {
				r.Correct, r.Form, r.Tier, r.Kind = t.Info.Correct, t.Info.FormatOK, t.Info.FoundBy, t.Info.Kind
			}
			if t.Tools.Offered {
				r.Tools = &t.Tools
			}
			if t.Thinking.Thoughts > 0 {
				r.Thinking = &t.Thinking
			}
			r.Each = slices.Clone(t.Parts)
			if samples != nil {
				r.Learnt(samples[g][i])
			}
			if greedy != nil {
				value := rl.Number(greedy[g])
				r.Greedy = &value
			}
			all = append(all, r)
		}
	}
	return all, nil
}

// fillTexts fills in the texts of a record.
func fillTexts(p *policy.CausalLM, t *rl.Trajectory, r *rl.Record) (err error) {
	first := len(t.Tokens)
	var actions [][]int32
	turn, end := 0, 0 // end of the last action
	for i, source := range t.Source {
		for turn < len(t.Turns) && t.Turns[turn].End <= i {
			turn++
		}
		if source != rl.Sampled {
			continue
		}
		first = min(first, i)
		if slices.Contains(t.Joined, i) {
			actions[len(actions)-1] = append(actions[len(actions)-1], t.Tokens[end:i]...)
		} else if i > end || len(actions) == 0 || turn > 0 && t.Turns[turn-1].End == i {
			actions = append(actions, nil)
		}
		end = i + 1
		actions[len(actions)-1] = append(actions[len(actions)-1], t.Tokens[i])
		piece, err := p.Tokenizer.Decode(t.Tokens[i:i+1], false)
		if err != nil {
			return err
		}
		r.Tokens = append(r.Tokens, piece)
	}
	if r.Shown, err = p.Tokenizer.Decode(t.Tokens[:first], false); err != nil {
		return err
	}
	if r.Written, _, err = p.DecodeEnds(t.Tokens[first:]); err != nil {
		return err
	}
	if len(actions) < 2 {
		return nil
	}
	for _, ids := range actions {
		text, _, err := p.DecodeEnds(ids)
		if err != nil {
			return err
		}
		r.Actions = append(r.Actions, text)
	}
	return nil
}
