package judge

import (
	"fmt"
	"math"
	"strings"
)

// replyTokens bounds a reply, and alternatives are the tokens whose log-probabilities the server returns, OpenAI's maximum.
const (
	replyTokens  = 16
	alternatives = 20
)

// reply is the response of /v1/chat/completions.
type reply struct {
	Choices []struct {
		Message  struct{ Content string }
		LogProbs *struct {
			Content []struct {
				Top []struct {
					Token   string
					LogProb float64
				} `json:"top_logprobs"`
			}
		} `json:"logprobs"`
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
}

// verdict is the probabilities of the choices, which sum to 1.
func (r reply) verdict(choices []string) ([]float64, error) {
	if len(r.Choices) == 0 {
		return nil, fmt.Errorf("judge: the response has no choice")
	}
	one := r.Choices[0]
	chosen := named(one.Message.Content, choices) // -1: the first token may tell nevertheless
	shares := make([]float64, len(choices))
	sum := 0.0
	if one.LogProbs != nil && len(one.LogProbs.Content) > 0 {
		for _, top := range one.LogProbs.Content[0].Top {
			for i, choice := range choices {
				if strings.EqualFold(strings.TrimSpace(top.Token), choice) {
					p := math.Exp(min(top.LogProb, 0))
					shares[i], sum = shares[i]+p, sum+p
				}
			}
		}
	}
	switch {
	case sum > 0 && (chosen < 0 || shares[chosen] > 0):
		for i := range shares {
			shares[i] /= sum
		}
	case chosen >= 0: // no log-probabilities, or a choice of several tokens
		clear(shares)
		shares[chosen] = 1
	default:
		return nil, fmt.Errorf("judge: the reply %.80q is none of %s", one.Message.Content, strings.Join(choices, ", "))
	}
	return shares, nil
}

// named is the index of the choice that a reply begins with, the longest of several; -1 = none.
func named(text string, choices []string) int {
	text = strings.ToLower(strings.TrimLeft(text, " \n\t\"'*([`"))
	found := -1
	for i, choice := range choices {
		rest, begins := strings.CutPrefix(text, strings.ToLower(choice))
		word := begins && (rest == "" || !letterOrDigit(rest[0]))
		if word && (found < 0 || len(choice) > len(choices[found])) {
			found = i
		}
	}
	return found
}

func letterOrDigit(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}
