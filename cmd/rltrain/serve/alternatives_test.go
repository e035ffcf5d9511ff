package serve

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
)

// evaluatedText is a completion with the model's log-probs of its tokens.
type evaluatedText struct {
	Text string
	IDs  []int32 `json:"token_ids"`
	Logs struct {
		Tokens  []string
		Values  []*float32           `json:"token_logprobs"`
		Top     []map[string]float32 `json:"top_logprobs"`
		Offsets []int                `json:"text_offset"`
	} `json:"logprobs"`
	Reason string `json:"finish_reason"`
}

func (s *running) evaluate(t testing.TB, body string) []evaluatedText {
	t.Helper()
	status, text := s.ask(t, "/v1/completions", body)
	var got struct{ Choices []evaluatedText }
	expect.Require(t, json.Unmarshal([]byte(text), &got) == nil && status == http.StatusOK, "%s: status %d, %s", body, status, text)
	return got.Choices
}

// scored are the model's log-probs of all tokens but the first.
func scored(t testing.TB, s *running, ids []int32, temperature float64) (logs []float32) {
	t.Helper()
	must.Do(t, s.engine.ask(t.Context(), func() error {
		all, err := s.base.Score(t.Context(), [][]int32{ids[:1]}, [][]int32{ids[1:]}, temperature)
		if err == nil {
			logs = all[0].LogProbs
		}
		return err
	}))
	return logs
}

func compareLogProbs(t *testing.T, what string, want []float32, got []*float32) {
	t.Helper()
	values := make([]float32, len(got))
	for i, v := range got {
		if v == nil {
			t.Errorf("%s: token %d has no log-prob", what, i)
			continue
		}
		values[i] = *v
	}
	expect.Equal(t, want, values, cmpopts.EquateApprox(0, 1e-5), fmt.Sprintf("%s, log-probs", what))
}

func TestEchoScoresThePrompt(t *testing.T) {
	s := start(t, Config{})
	prompts := [][]int32{{5, 6, 7, 20, 21}, {8, 9}}
	for _, tokens := range []int{0, 1, 4} {
		got := s.evaluate(t, fmt.Sprintf(`{"model":"tiny","prompt":[[5,6,7,20,21],[8,9]],"echo":true,"logprobs":3,"max_tokens":%d,"temperature":0,"return_token_ids":true}`, tokens))
		for i, c := range got {
			n := len(prompts[i])
			expect.Require(t, len(c.IDs) == n+tokens && slices.Equal(c.IDs[:n], prompts[i]) && c.Reason == "length", "prompt %d, max_tokens %d: %+v", i, tokens, c)
			expect.True(t, c.Logs.Values[0] == nil && c.Logs.Top[0] == nil, "the first token has log-prob %v and alternatives %v", c.Logs.Values[0], c.Logs.Top[0])
			compareLogProbs(t, "echo", scored(t, s, c.IDs, 1), c.Logs.Values[1:])
			var offsets []int
			for j := range c.IDs {
				offsets = append(offsets, utf8.RuneCountInString(strings.Join(c.Logs.Tokens[:j], "")))
			}
			expect.Equal(t, offsets, c.Logs.Offsets, "offsets")
			for j, top := range c.Logs.Top[1:] {
				best := float32(math.Inf(-1))
				for _, l := range top {
					best = max(best, l)
				}
				expect.True(t, len(top) >= 1 && len(top) <= 4 && *c.Logs.Values[j+1] <= best, "token %d: %v among %v", j+1, *c.Logs.Values[j+1], top)
				expect.True(t, j+1 < n || *c.Logs.Values[j+1] == best, "generated token %d has log-prob %v, the best of %v", j+1, *c.Logs.Values[j+1], top) // greedy
			}
		}
	}
	text := s.evaluate(t, `{"model":"tiny","prompt":["ab","é"],"echo":true,"max_tokens":0}`)
	expect.True(t, text[0].Text == "ab" && text[1].Text == "é", "%+v", text)
	for skip, want := range map[bool]string{true: "", false: "<eos>"} {
		body := fmt.Sprintf(`{"model":"tiny","prompt":[1],"echo":true,"max_tokens":0,"skip_special_tokens":%t}`, skip)
		expect.Same(t, want, s.evaluate(t, body)[0].Text, "skip_special_tokens %t", skip)
	}
}

func TestAlternatives(t *testing.T) {
	for _, c := range []struct {
		name        string
		raw         bool
		request     string
		temperature float64 // of the log-probs
	}{
		{"sampled", false, `"temperature":0.7`, 0.7},
		{"greedy", false, `"temperature":0`, 1},
		{"the model's own", true, `"temperature":0.7,"top_k":5`, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, Config{Raw: c.raw})
			body := fmt.Sprintf(`{"model":"tiny","prompt":[5,6,7],"max_tokens":6,"seed":3,%s,"return_token_ids":true,"logprobs":20}`, c.request)
			got := s.evaluate(t, body)[0]
			ids := append([]int32{5, 6, 7}, got.IDs...)
			compareLogProbs(t, c.name, scored(t, s, ids, c.temperature)[2:], got.Logs.Values)
			stream := pieces(t, s.send(t, t.Context(), "/v1/completions", body[:len(body)-1]+`,"stream":true}`))
			expect.True(t, len(stream) == 1 && stream[0].Choices[0].Text == got.Text, "streamed: %+v, at once: %q", stream, got.Text)
		})
	}
}

func TestChatAlternatives(t *testing.T) {
	s := start(t, Config{})
	status, text := s.ask(t, "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a"}],"max_tokens":5,"temperature":0,"logprobs":true,"top_logprobs":5}`)
	type alternative struct {
		Token   string
		LogProb float32
		Top     []alternative `json:"top_logprobs"`
	}
	var got struct {
		Choices []struct {
			Logs struct{ Content []alternative } `json:"logprobs"`
		}
	}
	expect.Require(t, json.Unmarshal([]byte(text), &got) == nil && status == http.StatusOK, "status %d, %s", status, text)
	content := got.Choices[0].Logs.Content
	expect.Require(t, len(content) == 5, "%s", text)
	for _, token := range content {
		expect.True(t, len(token.Top) == 5 && token.Top[0].LogProb == token.LogProb && token.Top[0].Token == token.Token, "%+v: the first alternative of a greedy token is the token", token)
		expect.True(t, slices.IsSortedFunc(token.Top, func(a, b alternative) int { return cmp.Compare(b.LogProb, a.LogProb) }), "%+v is not sorted", token.Top)
	}
}

// TestPromptsAreEvaluatedOnce: without completions, all choices of a prompt share one evaluation.
func TestPromptsAreEvaluatedOnce(t *testing.T) {
	s := start(t, Config{})
	f := &form{lane: s.lanes["tiny"], top: 3, echo: []string{"a"}, job: &job{prompts: [][]int32{{5, 6, 7}}, options: policy.GenerateOptions{Samples: 2}, raw: true}}
	f.job.unwritten()
	all, _, _ := f.job.heard()
	var tops [][]policy.TopLogProbs
	for _, n := range all {
		p := must.Get(s.finished(t.Context(), f, n))(t)
		tops = append(tops, p.top)
	}
	expect.True(t, len(tops) == 2 && len(tops[0]) == 2 && &tops[0][0] == &tops[1][0], "evaluated anew: %v", tops)
}
