package math

import (
	"regexp"
	"strings"

	"github.com/rltrain/rltrain/envs"
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

// Marks of a text prompt. A model that continues after its solution generates questionMark.
const (
	questionMark = "\n\nQ: "
	solutionMark = "\nA: "
)

// instruction is the system prompt.
func instruction(o Options, task string) string {
	switch {
	case o.Instruction != "":
		return o.Instruction
	case task == MATH:
		return competitionInstruction
	case !o.Annotate:
		return plainInstruction
	}
	return calculatorInstruction
}

// conversation is the system prompt, the few-shot examples as turns, and the question.
func conversation(o Options, examples []Problem, p Problem) []envs.Message {
	messages := []envs.Message{{Role: envs.RoleSystem, Content: instruction(o, p.Task)}}
	for _, example := range examples {
		messages = append(messages,
			envs.Message{Role: envs.RoleUser, Content: example.Question},
			envs.Message{Role: envs.RoleAssistant, Content: shown(o, example)})
	}
	return append(messages, envs.Message{Role: envs.RoleUser, Content: p.Question})
}

// plain is the same as text. Base models get no built-in instruction, only the user's.
func plain(o Options, examples []Problem, p Problem) string {
	text := o.Instruction
	for _, example := range examples {
		text += questionMark + example.Question + solutionMark + shown(o, example)
	}
	return strings.TrimLeft(text+questionMark+p.Question+solutionMark, "\n")
}

// shown is a solution in the format that the model should generate.
func shown(o Options, p Problem) string {
	if o.Annotate {
		return p.Solution
	}
	return annotation.ReplaceAllString(p.Solution, "")
}
