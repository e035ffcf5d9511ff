// Package agenttest is an agent for tests: the program that imports it plays it when it is started by [Command].
package agenttest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
)

const name = "agenttest"

func init() {
	if len(os.Args) == 2 && os.Args[1] == name {
		play()
		os.Exit(0)
	}
}

// Command is the value of the option agent.
func Command() (string, error) {
	own, err := os.Executable()
	return fmt.Sprintf("cmd:'%s' %s", own, name), err
}

// message is one of a conversation.
type message = map[string]any

// play asks for two messages. The reward is the fraction of those that begin with a small letter.
func play() {
	var task struct{ Seed uint64 }
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if json.Unmarshal([]byte(line), &task) != nil {
		os.Exit(3)
	}
	var said []message
	reward := 0.0
	for _, text := range []string{fmt.Sprint(task.Seed % 3), "more"} {
		said = append(said, message{"role": "user", "content": text})
		answer := complete(said)
		said = append(said, answer)
		if text, _ := answer["content"].(string); text != "" && text[0] >= 'a' && text[0] <= 'z' {
			reward += 0.5
		}
	}
	fmt.Printf("{\"reward\": %v}\n", reward)
}

// complete asks the policy for the next message.
func complete(said []message) message {
	data, _ := json.Marshal(map[string]any{"model": "policy", "messages": said})
	q, err := http.NewRequest(http.MethodPost, os.Getenv("OPENAI_BASE_URL")+"/chat/completions", bytes.NewReader(data))
	if err != nil {
		os.Exit(4)
	}
	q.Header.Set("Authorization", "Bearer "+os.Getenv("OPENAI_API_KEY"))
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		os.Exit(5)
	}
	var got struct{ Choices []struct{ Message message } }
	if json.NewDecoder(r.Body).Decode(&got) != nil || len(got.Choices) != 1 {
		os.Exit(6)
	}
	return got.Choices[0].Message
}
