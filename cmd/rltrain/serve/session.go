package serve

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/torch"
)

// session is an episode that is recorded: the calls of one agent. Its calls take turns.
type session struct {
	turn chan struct{} // held by the call that runs, or the end
	used time.Time     // guarded by the recorder
	over bool

	rollout.Recorded
	said    []chat.Message // of the last call, with its answer
	inputs  string         // tools and template arguments of the last call, as JSON
	ended   bool           // its answer has an end token
	thought bool           // its answer has a thought
}

// recordedCall is a call of a session.
type recordedCall struct {
	*session
	model       string
	temperature float64
	messages    []chat.Message
	inputs      string
	anew        bool // it begins a segment
	prompt      []int32
	content     string // of the answer so far
	calls       []toolCall
}

// take begins a turn.
func (s *session) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.over {
		s.give()
		return refuse(http.StatusUnauthorized, "", "the session is closed")
	}
	return nil
}

func (s *session) give() { <-s.turn }

// call begins a call of a session, which has the turn. Its tokens must be those of the policy: no filters, and one temperature.
func (s *session) call(model string, o policy.GenerateOptions) (*recordedCall, error) {
	c := o.Sampling
	switch {
	case o.Samples != 1:
		return nil, bad("n", "n: a session goes on with one message; pass 1")
	case !(c.Temperature > 0) || c.TopP != 1 || c.TopK != 0 || c.MinP != 0 || c.RepetitionPenalty != 1:
		return nil, bad("temperature", "a session needs a temperature above 0, without top_p, top_k, min_p and repetition_penalty: training needs the probabilities of all tokens")
	case s.Model != "" && (s.Model != model || s.Temperature != c.Temperature):
		return nil, bad("model", "the session has model %s with temperature %g; open another one for other settings", s.Model, s.Temperature)
	case len(s.Trajectory.Tokens) > mostRecorded:
		return nil, bad("messages", "the session has more than %d tokens; open another one", mostRecorded)
	}
	return &recordedCall{session: s, model: model, temperature: c.Temperature}, nil
}

// encode is the tokens of a request's messages. A call that goes on with the conversation keeps the tokens that were sampled.
func (c *recordedCall) encode(p *policy.CausalLM, e chat.Example) ([]int32, error) {
	inputs, err := json.Marshal(e.TemplateInputs)
	if err != nil {
		return nil, err
	}
	c.messages, c.inputs, c.anew = e.Prompt.Messages, string(inputs), true
	if c.said != nil && c.inputs == c.session.inputs {
		if added := chat.Continuation(c.said, c.messages); added != nil && !(c.thought && p.DropsThoughts(added[0].Role)) {
			reply, err := p.EncodeReply(e.TemplateInputs, added, c.ended)
			if err != nil {
				return nil, err
			}
			c.anew = false
			return slices.Concat(c.Trajectory.Context(), reply), nil
		}
	}
	return p.EncodePrompt(e)
}

// hear notes a part of the answer.
func (c *recordedCall) hear(p *policy.CausalLM, m *chatMessage, done *policy.Completion) error {
	if m.Content != nil {
		c.content += *m.Content
	}
	c.calls = append(c.calls, m.Calls...)
	if done == nil {
		return nil
	}
	return c.finish(p, done)
}

// finish appends the call to the trajectory.
func (c *recordedCall) finish(p *policy.CausalLM, done *policy.Completion) error {
	text, _, err := p.DecodeEnds(done.IDs)
	if err != nil {
		return err
	}
	s, t := c.session, &c.Trajectory
	switch {
	case len(t.Tokens) == 0:
		t.AppendGiven(c.prompt...)
	case c.anew:
		t.BeginSegment(c.prompt...)
	default:
		t.AppendGiven(c.prompt[len(t.Context()):]...)
	}
	for i, id := range done.IDs {
		t.AppendSampled(id, done.BehaviorLogProbs[i], done.LogProbs[i])
	}
	t.EndTurn(0)
	if t.Stop = envs.StopEnd; done.Reason == torch.ReasonLength {
		t.Stop = envs.StopLength
	}
	_, thought, _ := envs.SplitThought(text, p.OpensThought(c.prompt))
	s.Model, s.Temperature, s.inputs = c.model, c.temperature, c.inputs
	s.said = append(slices.Clone(c.messages), c.answer())
	s.ended = len(done.IDs) > 0 && slices.Contains(p.EOS(), done.IDs[len(done.IDs)-1])
	s.thought = thought > 0
	return nil
}

// answer is the answer as a message of the conversation.
func (c *recordedCall) answer() chat.Message {
	m := chat.Turn(envs.RoleAssistant, c.content)
	var list []any
	for _, call := range c.calls {
		arguments, err := dataset.Parse(call.Function.Arguments)
		if err != nil {
			arguments = dataset.Object{}
		}
		list = append(list, tools.Called(call.ID, call.Function.Name, arguments))
	}
	if list != nil {
		m = chat.Message(dataset.Object(m).With("tool_calls", list))
	}
	return m
}
