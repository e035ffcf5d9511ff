package math

import (
	"regexp"

	"rltrain/envs"
)

const (
	calculatorInstruction = "You are a careful mathematician. Solve the problem step by step, each step on a new line. " +
		"Write every calculation as <<expression=result>>result. " +
		"On the last line give the final answer as: The answer is: [answer]"
	plainInstruction = "You are a careful mathematician. Solve the problem step by step, each step on a new line. " +
		"On the last line give the final answer as: The answer is: [answer]"
	competitionInstruction = "You are a careful mathematician. Solve the problem step by step, one step a line, " +
		"and put the final answer in \\boxed{}."
)

var annotation = regexp.MustCompile(`<<[^<>\n]*>>`)

// conversation is the instruction, the worked examples as turns, and the question.
func conversation(o Options, examples []Problem, p Problem) []envs.Message {
	instruction := calculatorInstruction
	switch {
	case p.Task == MATH:
		instruction = competitionInstruction
	case !o.Annotate:
		instruction = plainInstruction
	}
	messages := []envs.Message{{Role: envs.RoleSystem, Content: instruction}}
	for _, example := range examples {
		messages = append(messages,
			envs.Message{Role: envs.RoleUser, Content: example.Question},
			envs.Message{Role: envs.RoleAssistant, Content: shown(o, example)})
	}
	return append(messages, envs.Message{Role: envs.RoleUser, Content: p.Question})
}

// shown is a solution as a model is to write it.
func shown(o Options, p Problem) string {
	if o.Annotate {
		return p.Solution
	}
	return annotation.ReplaceAllString(p.Solution, "")
}
