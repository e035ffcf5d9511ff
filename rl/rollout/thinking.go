package rollout

import (
	"slices"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// begunMessage is the beginning of a message that the limit of thinking cut.
type begunMessage struct {
	ids     []int32 // sampled, then given; nil if the message has not begun
	sampled int     // of ids
	ended   bool    // the end tag was given
}

// limit is how many tokens the next action of an episode may have.
func (r *rollout) limit(e *episode) int {
	n := max(1, r.config.MaxNew-e.spent)
	if r.config.MaxThinking > 0 && e.begun.ids == nil {
		n = min(n, r.config.MaxThinking)
	}
	return n
}

// act makes the action of a completion.
func (e *episode) act(p *policy.CausalLM, completion policy.Completion) (*action, error) {
	text, ends, err := p.DecodeEnds(slices.Concat(e.begun.ids, completion.IDs))
	if err != nil {
		return nil, err
	}
	a := &action{Completion: completion, text: text, ends: ends, before: len(e.begun.ids), answer: make(chan answer, 1)}
	stop := envs.StopEnd
	if at, end := policy.FirstStop(text, e.shown.Stop); at >= 0 {
		text, stop = text[:at+len(end)], envs.StopString
	} else if completion.Reason == torch.ReasonLength {
		stop = envs.StopLength
	}
	a.Action, a.thought, a.closed = envs.NewAction(text, stop, p.OpensThought(e.Tokens[:len(e.Tokens)-a.before]))
	return a, nil
}

// goesOn reports whether the limit of thinking cut an action, so that the message goes on.
func (r *rollout) goesOn(e *episode, a *action) bool {
	return r.config.MaxThinking > 0 && a.before == 0 && a.Action.Stop == envs.StopLength && len(a.IDs) < r.config.MaxNew-e.spent
}

// goOn appends an action that the limit of thinking cut. If its thought has not ended, the end tag follows as given tokens.
func (r *rollout) goOn(e *episode, a *action) error {
	p := r.sampler.Policy()
	e.appendSampled(a)
	var given []int32
	if a.thought > 0 && !a.closed {
		var err error
		if given, err = p.Tokenizer.EncodeRaw("\n"+p.EndOfThought()+"\n\n", false); err != nil {
			return err
		}
		e.AppendGiven(given...)
	}
	e.Joined = append(e.Joined, len(e.Tokens))
	e.begun = begunMessage{ids: slices.Concat(a.IDs, given), sampled: len(a.IDs), ended: given != nil}
	e.action, e.Stop = nil, a.Action.Stop
	e.spent += len(a.IDs)
	e.answered++
	return nil
}

// thinks counts the thought of a message that is over.
func (e *episode) thinks(a *action) {
	begun := e.begun
	e.begun = begunMessage{}
	if a.thought == 0 {
		return
	}
	n := begun.sampled
	if !begun.ended {
		for n = 0; n < len(a.ends) && a.ends[n] <= a.thought; n++ {
		}
	}
	e.Thinking.Thoughts++
	e.Thinking.Tokens += n
	if a.closed && !begun.ended {
		e.Thinking.Closed++
	}
	e.thoughts = append(e.thoughts, a.Thinking)
}
