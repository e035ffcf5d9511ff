package remote_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/serve/servetest"
)

// fakeOrder is a request for completions.
type fakeOrder struct {
	Model             string
	Prompt            json.RawMessage
	MaxTokens         int `json:"max_tokens"`
	Temperature       *float64
	TopP              *float64 `json:"top_p"`
	TopK              *int     `json:"top_k"`
	MinP              *float64 `json:"min_p"`
	RepetitionPenalty *float64 `json:"repetition_penalty"`
	Seed              int64
	StopIDs           []int32 `json:"stop_token_ids"`
	LogProbs          *int    `json:"logprobs"`
	TokenIDs          bool    `json:"return_token_ids"`
}

// fakeChoice is a completion as the server sends it; a quirk may change it.
type fakeChoice struct {
	Index     int           `json:"index"`
	Text      string        `json:"text"`
	Reason    string        `json:"finish_reason"`
	IDs       []int32       `json:"token_ids"`
	PromptIDs []int32       `json:"prompt_token_ids"`
	LogProbs  *fakeLogProbs `json:"logprobs"`
}

// fakeLogProbs are those of a choice's tokens.
type fakeLogProbs struct {
	Values []any `json:"token_logprobs"`
}

// fakeAnswered is a response of completions.
type fakeAnswered struct {
	Model   string       `json:"model"`
	Choices []fakeChoice `json:"choices"`
}

// fakeServer is a server with the quirks of vLLM. Its fields may be changed between requests under Lock.
type fakeServer struct {
	*servetest.Front
	// Change changes what a request for completions is answered.
	Change func(o fakeOrder, choices []fakeChoice) []fakeChoice
	Raw    bool        // log-probabilities are those of temperature 1
	Frozen bool        // adapters are loaded and not applied
	Length int         // what it says of the model's positions; 0 = the truth
	Orders []fakeOrder // requests for completions
}

// newFakeServer starts a server of the model of a folder that loads adapters from the test's folders; it ends with the test.
func newFakeServer(t testing.TB, dir string) *fakeServer {
	t.Helper()
	s := &fakeServer{Front: servetest.Start(t, dir, filepath.Dir(t.TempDir()))}
	s.Ask, s.Answer = s.ask, s.answer
	return s
}

func (s *fakeServer) ask(path string, asked []byte) []byte {
	s.Lock()
	defer s.Unlock()
	var o fakeOrder
	if json.Unmarshal(asked, &o) != nil || path != "/v1/completions" {
		return asked
	}
	s.Orders = append(s.Orders, o)
	if s.Frozen {
		return []byte(strings.Replace(string(asked), fmt.Sprintf(`"model":%q`, o.Model), `"model":"base"`, 1))
	}
	return asked
}

func (s *fakeServer) answer(path string, asked, answer []byte) []byte {
	s.Lock()
	defer s.Unlock()
	if path == "/v1/models" && s.Length > 0 {
		return regexp.MustCompile(`"max_model_len":\d+`).ReplaceAll(answer, fmt.Appendf(nil, `"max_model_len":%d`, s.Length))
	} else if path != "/v1/completions" {
		return answer
	}
	var o fakeOrder
	var a fakeAnswered
	_, _ = json.Unmarshal(asked, &o), json.Unmarshal(answer, &a) // the server has read and written them
	a.Model = o.Model
	for _, c := range a.Choices {
		if s.Raw {
			ids, _ := json.Marshal(slices.Concat(c.PromptIDs, c.IDs))
			_, scored := s.Send(path, fmt.Sprintf(`{"model":%q,"prompt":[%s],"echo":true,"max_tokens":0,"temperature":1,"logprobs":0}`, o.Model, ids))
			var raw fakeAnswered
			_ = json.Unmarshal(scored, &raw)
			c.LogProbs.Values = raw.Choices[0].LogProbs.Values[len(c.PromptIDs):]
		}
	}
	if s.Change != nil {
		a.Choices = s.Change(o, a.Choices)
	}
	changed, _ := json.Marshal(a)
	return changed
}

func fakeError(w http.ResponseWriter, status int, message string) {
	fakeAnswer(w, status, map[string]any{"error": map[string]any{"message": message, "code": status}})
}

func fakeAnswer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the client has gone
}
