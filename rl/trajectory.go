package rl

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"

	"github.com/rltrain/rltrain/envs"
)

// Source says where a token of a trajectory comes from.
type Source uint8

const (
	Given   Source = iota // prompt, calculator result, text of the environment: not trained on
	Sampled               // from the policy
)

// Trajectory is the token stream of one episode. Sampled tokens are never tokenized again. Tokens, Source, BehaviorLogProbs,
// LogProbs and Teacher have one entry per token; consecutive turns cover every sampled token.
//
// A trajectory has several segments if the conversation that the model reads was written anew, such as by a chat template that drops
// earlier thoughts. A segment has the tokens that the model read, its own alone.
type Trajectory struct {
	Prompt  int    `json:"prompt"`  // number of the episode
	Index   int    `json:"sample"`  // number of the sample, from 0
	Version uint64 `json:"version"` // of the policy

	Tokens           []int32   `json:"tokens"`
	Source           []Source  `json:"source"`
	BehaviorLogProbs []float32 `json:"behavior_logprobs"` // nats, of the distribution sampled from; 0 for given tokens
	LogProbs         []float32 `json:"logprobs"`          // log π in nats, at temperature 1, unfiltered; 0 for given tokens
	Teacher          []float32 `json:"-"`                 // log π of a teacher on a server; nil without one

	Routes     Routes `json:"routes,omitempty"`      // of the first tokens, as far as they are known
	RouteWidth int    `json:"route_width,omitempty"` // numbers of a token in Routes

	Segments []int `json:"segments,omitempty"` // where the segments after the first begin

	Turns []Turn          `json:"turns"`
	Steps []Turn          `json:"steps,omitempty"` // steps within turns, in order, each with a reward besides that of its turn
	Stop  envs.StopReason `json:"stop"`            // why the last action ended
	Info  *envs.Info      `json:"info,omitempty"`
	Tools envs.ToolUse    `json:"-"`
	// Joined are the tokens at which a message goes on that the limit of thinking cut.
	Joined []int `json:"-"`
	// Thinking counts the thoughts of the model's messages.
	Thinking envs.ThinkingUse `json:"-"`
	Parts    []RecordedValue  `json:"-"` // each reward of a list, for the records
}

// Turn is one action with the text that the environment added.
type Turn struct {
	End    int     // index after its last token; it starts at the end of the previous turn
	Reward float64 // NaN if it failed
}

type turnJSON struct {
	End    int      `json:"end"`
	Reward *float64 `json:"reward"` // null if it failed
}

// MarshalJSON writes a failed reward as null.
func (t Turn) MarshalJSON() ([]byte, error) {
	out := turnJSON{End: t.End}
	if !math.IsNaN(t.Reward) {
		out.Reward = &t.Reward
	}
	return json.Marshal(out)
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (t *Turn) UnmarshalJSON(data []byte) error {
	var in turnJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	*t = Turn{End: in.End, Reward: math.NaN()}
	if in.Reward != nil {
		t.Reward = *in.Reward
	}
	return nil
}

// AppendGiven appends tokens that the policy did not sample.
func (t *Trajectory) AppendGiven(tokens ...int32) {
	for _, token := range tokens {
		t.add(token, Given, 0, 0)
	}
}

// AppendSampled appends a sampled token with its two log-probabilities.
func (t *Trajectory) AppendSampled(token int32, behavior, logProb float32) {
	t.add(token, Sampled, behavior, logProb)
}

func (t *Trajectory) add(token int32, source Source, behavior, logProb float32) {
	t.Tokens, t.Source = append(t.Tokens, token), append(t.Source, source)
	t.BehaviorLogProbs, t.LogProbs = append(t.BehaviorLogProbs, behavior), append(t.LogProbs, logProb)
}

// BeginSegment begins another segment, with tokens that the policy did not sample.
func (t *Trajectory) BeginSegment(tokens ...int32) {
	t.Segments = append(t.Segments, len(t.Tokens))
	t.AppendGiven(tokens...)
}

// segment is where the segment of a token begins.
func (t *Trajectory) segment(at int) int {
	for i := len(t.Segments) - 1; i >= 0; i-- {
		if t.Segments[i] <= at {
			return t.Segments[i]
		}
	}
	return 0
}

// Context is the tokens of the last segment, after which the model goes on.
func (t *Trajectory) Context() []int32 { return t.Tokens[t.segment(len(t.Tokens)):] }

// Contexts are the segments with a sampled token, each up to its last one, by the index of their first token.
func (t *Trajectory) Contexts() iter.Seq2[int, []int32] {
	return func(yield func(int, []int32) bool) {
		for at := len(t.Tokens) - 1; at >= 0; at-- {
			if t.Source[at] != Sampled {
				continue
			}
			from := t.segment(at)
			if !yield(from, t.Tokens[from:at+1]) {
				return
			}
			at = from
		}
	}
}

// EndTurn ends a turn after the last token. If it has no tokens, its reward goes to the previous turn.
func (t *Trajectory) EndTurn(reward float64) {
	if n := len(t.Turns); n > 0 && t.Turns[n-1].End == len(t.Tokens) {
		t.Turns[n-1].Reward += reward
		return
	}
	t.Turns = append(t.Turns, Turn{End: len(t.Tokens), Reward: reward})
}

func (t *Trajectory) turnStart(turn int) int {
	if turn == 0 {
		return 0
	}
	return t.Turns[turn-1].End
}

// Reward is the sum over the turns; NaN without turns or if one failed.
func (t *Trajectory) Reward() float64 {
	if len(t.Turns) == 0 {
		return math.NaN()
	}
	sum := 0.0
	for _, reward := range t.Rewards() {
		sum += reward
	}
	return sum
}

// Rewards lists the rewards of the turns, with their steps.
func (t *Trajectory) Rewards() []float64 {
	rewards, steps := make([]float64, len(t.Turns)), t.Steps
	for i, turn := range t.Turns {
		for ; len(steps) > 0 && steps[0].End <= turn.End; steps = steps[1:] {
			rewards[i] += steps[0].Reward
		}
		rewards[i] += turn.Reward
	}
	return rewards
}

// Len is the number of sampled tokens.
func (t *Trajectory) Len() int {
	n := 0
	for _, s := range t.Source {
		n += int(s)
	}
	return n
}

// Sample converts the trajectory to a sample: sampled tokens are actions, and the reward of a turn or step is that of its last
// action. The reward of one without an action goes to the action before it, or to the first. The sample is that of the last segment with
// an action and has all rewards; the others are its Earlier. temperature is that of the trainer.
func (t *Trajectory) Sample(temperature float64) *Sample {
	return t.sample(0, len(t.Turns), temperature)
}

// TurnSample converts one turn to a sample, with everything before it as context.
func (t *Trajectory) TurnSample(turn int, temperature float64) *Sample {
	return t.sample(turn, turn+1, temperature)
}

func (t *Trajectory) sample(from, to int, temperature float64) *Sample {
	logProbs := t.BehaviorLogProbs
	if temperature == 1 {
		logProbs = t.LogProbs // also if the distribution was filtered
	}
	begin := func() *Sample {
		return &Sample{Prompt: t.Prompt, Index: t.Index, Version: t.Version, Truncated: t.Stop == envs.StopLength}
	}
	s, begun, owed := begin(), 0, 0.0
	pay := func(reward float64) {
		if owed += reward; s.Len() > 0 {
			s.Rewards[s.Len()-1] += owed
			owed = 0
			s.end()
		}
	}
	steps := t.Steps
	for len(steps) > 0 && from < to && steps[0].End <= t.turnStart(from) {
		steps = steps[1:]
	}
	for turn := from; turn < to; turn++ {
		for at := t.turnStart(turn); at < t.Turns[turn].End; at++ {
			for ; len(steps) > 0 && steps[0].End <= at; steps = steps[1:] {
				pay(steps[0].Reward)
			}
			if t.Source[at] != Sampled {
				continue
			}
			if start := t.segment(at); start != begun && s.Len() > 0 {
				next := begin()
				next.Earlier = append(s.Earlier, s)
				for _, r := range s.Rewards {
					owed += r
				}
				s.Earlier, s.Rewards, s.Ends = nil, make([]float64, s.Len()), nil
				s = next
			}
			begun = t.segment(at)
			s.Rows, s.Actions = append(s.Rows, at-1-begun), append(s.Actions, t.Tokens[at])
			s.BehaviorLogProbs, s.Rewards = append(s.BehaviorLogProbs, logProbs[at]), append(s.Rewards, 0)
			if t.Teacher != nil {
				s.Teacher = append(s.Teacher, t.Teacher[at])
			}
			s.Tokens, s.Routes = t.Tokens[begun:at+1], t.routesOf(begun, at+1)
		}
		for ; len(steps) > 0 && steps[0].End <= t.Turns[turn].End; steps = steps[1:] {
			pay(steps[0].Reward)
		}
		pay(t.Turns[turn].Reward)
	}
	return s
}

// Validate checks that the fields are consistent.
func (t *Trajectory) Validate() error {
	n := len(t.Tokens)
	if len(t.Source) != n || len(t.BehaviorLogProbs) != n || len(t.LogProbs) != n {
		return fmt.Errorf("trajectory of %d tokens has %d sources, %d and %d log-probabilities", n, len(t.Source), len(t.BehaviorLogProbs), len(t.LogProbs))
	}
	if t.Teacher != nil && len(t.Teacher) != n {
		return fmt.Errorf("trajectory of %d tokens has %d log-probabilities of a teacher", n, len(t.Teacher))
	}
	if n == 0 {
		return errors.New("trajectory without tokens")
	}
	if t.RouteWidth < 0 || t.RouteWidth == 0 && len(t.Routes) > 0 || t.RouteWidth > 0 && (len(t.Routes)%t.RouteWidth != 0 || len(t.Routes) > n*t.RouteWidth) {
		return fmt.Errorf("trajectory of %d tokens has %d numbers of routes, %d of each token", n, len(t.Routes), t.RouteWidth)
	}
	for i, start := range t.Segments {
		if start <= 0 || start >= n || i > 0 && start <= t.Segments[i-1] {
			return fmt.Errorf("trajectory of %d tokens: segment %d begins at %d", n, i+2, start)
		}
	}
	end := 0
	for i, turn := range t.Turns {
		if turn.End <= end || turn.End > n {
			return fmt.Errorf("trajectory of %d tokens: turn %d ends at %d, the one before at %d", n, i, turn.End, end)
		}
		end = turn.End
	}
	for i, s := range t.Source {
		switch {
		case s > Sampled:
			return fmt.Errorf("trajectory: token %d has the source %d", i, s)
		case s == Sampled && t.segment(i) == i:
			return fmt.Errorf("trajectory: token %d is the first of a segment and sampled, and nothing predicts it", i)
		case s == Sampled && i >= end:
			return fmt.Errorf("trajectory: token %d is sampled and in no turn", i)
		}
	}
	return nil
}

// Group has the samples of one prompt.
type Group []*Trajectory

// Rewards lists the total rewards, NaN if they failed.
func (g Group) Rewards() []float64 {
	rewards := make([]float64, len(g))
	for i, t := range g {
		rewards[i] = t.Reward()
	}
	return rewards
}
