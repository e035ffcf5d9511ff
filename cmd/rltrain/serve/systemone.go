package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/rltrain/rltrain/internal/jsonapi"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// mostQuestions limits the questions of a request.
const mostQuestions = 64

// decisionBody is the body of /v1/systemone, the route of transformers serve for decision models.
type decisionBody struct {
	Model     string          `json:"model"`
	State     json.RawMessage `json:"state"`
	Questions json.RawMessage `json:"questions"`
	Assets    json.RawMessage `json:"assets"` // images
}

// decide answers typed questions about a state with a probability for each option. No text is generated.
func (s *Server) decide(w http.ResponseWriter, r *http.Request) error {
	var q decisionBody
	if s.stops() {
		return errStopped
	}
	if s.engine.full() {
		return errBusy
	}
	if err := s.readBody(w, r, longestBody, &q, nil); err != nil {
		return unprocessable(err)
	}
	if q.Model == "" {
		return unprocessable(bad("model", "model is missing"))
	}
	l, err := s.lane(q.Model)
	if err != nil {
		return err
	}
	var questions policy.Asked
	if err := s.prepare(r.Context(), len(q.State)+len(q.Questions), func() error {
		state, parsed, err := q.parse(l.decider)
		if err != nil {
			return unprocessable(err)
		}
		if questions, err = l.decider.Ask(state, parsed); err != nil {
			return bad("questions", "%v", err)
		}
		return nil
	}); err != nil {
		return err
	}
	s.figures.read(l.name, questions.Tokens)
	answers, err := s.engine.decide(r.Context(), l, questions)
	if err != nil {
		return err
	}
	text, err := jinja.JSON(answers)
	if err != nil {
		return fmt.Errorf("writing the answers: %w", err)
	}
	writeJSON(w, http.StatusOK, struct {
		Model   string          `json:"model"`
		Answers json.RawMessage `json:"answers"`
		Usage   map[string]int  `json:"usage"`
	}{q.Model, json.RawMessage(text), map[string]int{"input_tokens": questions.Tokens, "output_tokens": 0}})
	return nil
}

// parse reads the state and the questions.
func (q *decisionBody) parse(decider *policy.Decider) (state jinja.Value, questions []decision.Question, err error) {
	if len(q.Assets) > 0 && jsonapi.Compact(q.Assets) != "{}" {
		return nil, nil, bad("assets", "assets: the model reads no images")
	}
	if len(q.State) == 0 {
		return nil, nil, bad("state", "state is missing")
	}
	if state, err = jinja.ParseJSON(q.State); err != nil {
		return nil, nil, bad("state", "state: %v", err)
	}
	switch state.(type) {
	case string, *jinja.Dict, *jinja.List:
	default:
		return nil, nil, bad("state", "state must be a text, an object or a list")
	}
	if len(q.Questions) == 0 {
		return nil, nil, bad("questions", "questions is missing")
	}
	value, err := jinja.ParseJSON(q.Questions)
	if err != nil {
		return nil, nil, bad("questions", "questions: %v", err)
	}
	named, ok := value.(*jinja.Dict)
	if !ok || named.Len() > mostQuestions {
		return nil, nil, bad("questions", "questions must be an object of 1 to %d questions by name", mostQuestions)
	}
	if questions, err = decider.Parse(named); err != nil {
		return nil, nil, bad("questions", "%v", err)
	}
	return state, questions, nil
}

// unprocessable gives an invalid field the status that transformers serve does.
func unprocessable(err error) error {
	var r *refusal
	if errors.As(err, &r) && r.status == http.StatusBadRequest {
		return &refusal{http.StatusUnprocessableEntity, r.param, r.text}
	}
	return err
}
