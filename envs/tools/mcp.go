package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/internal/version"
	"github.com/rltrain/rltrain/internal/words"
)

// modelContext is what Tool.Run of a tool of an MCP server begins with; cmd:PROGRAM or a URL follows.
const modelContext = "mcp:"

// startLimit is how long an MCP server may take to start.
const startLimit = time.Minute

// mcpServer is a connection to an MCP server.
type mcpServer struct {
	*mcp.ClientSession
	pipe *program.Pipe // of a program; nil for a URL
}

// connect starts the program after mcp:, or connects to the URL.
func (s *Set) connect(ctx context.Context, where string) (*mcpServer, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	c := &mcpServer{}
	var transport mcp.Transport
	if line, ok := strings.CutPrefix(where, command); ok {
		pipe, err := program.Open(line)
		if err != nil {
			return nil, err
		}
		c.pipe = pipe
		transport = &mcp.IOTransport{Reader: pipe, Writer: pipe, MaxLineLength: maxReply}
	} else {
		transport = &mcp.StreamableClientTransport{Endpoint: where, MaxRetries: -1, MaxEventSize: maxReply, DisableStandaloneSSE: true, HTTPClient: &http.Client{
			Transport: bounded{http.DefaultTransport}, CheckRedirect: s.client.CheckRedirect,
		}}
	}
	var err error
	client := mcp.NewClient(&mcp.Implementation{Name: "rltrain", Version: version.Version}, &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}})
	if c.ClientSession, err = client.Connect(ctx, transport, nil); err != nil {
		if c.pipe != nil {
			err = c.pipe.Ended(err)
		}
		return nil, fmt.Errorf("the MCP server does not answer: %w", err)
	}
	return c, nil
}

// Close ends the session, and the program.
func (c *mcpServer) Close() {
	if c.pipe != nil {
		_ = c.pipe.Close()
	}
	_ = c.ClientSession.Close()
}

// list returns the tools of a server that are called name, or all if that is "". Descriptions and parameters are the server's
// unless t has some.
func (c *mcpServer) list(ctx context.Context, t Tool) (all []Tool, err error) {
	var names []string
	for found, err := range c.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		if names = append(names, found.Name); t.Name != "" && t.Name != found.Name {
			continue
		}
		one := t
		one.Name = found.Name
		if one.Description == "" {
			one.Description = found.Description
		}
		if one.Parameters == nil {
			if one.Parameters, err = schemaOf(found.InputSchema); err != nil {
				return nil, fmt.Errorf("tool %s: parameters: %w", words.Quote(found.Name), err)
			}
		}
		if !isName(one.Name) {
			return nil, fmt.Errorf("a tool has the name %s; want 1 to %d letters, digits or characters of \"_-./:\"", words.Quote(one.Name), longestName)
		}
		all = append(all, one)
	}
	if all == nil {
		return nil, fmt.Errorf("the MCP server has no tool %s; its tools are %s", words.Quote(t.Name), words.List(names))
	}
	return all, nil
}

// schemaOf is a schema as the SDK has it.
func schemaOf(schema any) (dataset.Object, error) {
	text, err := json.Marshal(schema)
	if err != nil {
		return nil, err
	}
	value, err := dataset.Parse(string(text))
	if err != nil {
		return nil, err
	}
	o, ok := value.(dataset.Object)
	if !ok {
		return nil, fmt.Errorf("got %s, want a JSON schema, which is an object", dataset.Kind(value))
	}
	return o, checkSchema(o)
}

// callMCP calls a tool of the session's connection to a server.
func (s *Session) callMCP(ctx context.Context, where, name string, arguments dataset.Object) (string, error) {
	s.lock.Lock()
	c, closed := s.servers[where], s.closed
	s.lock.Unlock()
	if c == nil && !closed {
		var err error
		if c, err = s.set.connect(ctx, where); err != nil {
			return "", err
		}
		s.lock.Lock()
		if closed = s.closed; !closed {
			s.servers[where] = c
		}
		s.lock.Unlock()
		if closed {
			c.Close()
		}
	}
	if closed {
		return "", errors.New("the episode is over")
	}
	limited, cancel := context.WithTimeout(ctx, s.set.timeout)
	defer cancel()
	r, err := c.CallTool(limited, &mcp.CallToolParams{Name: name, Arguments: arguments})
	switch {
	case limited.Err() != nil:
		err = fmt.Errorf("the tool did not answer within %v", s.set.timeout)
	case err != nil && !errors.As(err, new(*jsonrpc.Error)): // the connection ended
		if c.pipe != nil {
			err = c.pipe.Ended(err)
		}
		s.lock.Lock()
		delete(s.servers, where) // the next call starts it again
		s.lock.Unlock()
		c.Close()
	}
	if err != nil {
		return "", err
	}
	text := contentOf(r)
	if r.IsError {
		return "", errors.New(text)
	}
	return text, nil
}

// contentOf is the texts of a result, or else what it has as JSON.
func contentOf(r *mcp.CallToolResult) string {
	var texts []string
	for _, one := range r.Content {
		if text, ok := one.(*mcp.TextContent); ok {
			texts = append(texts, text.Text)
		} else if data, err := one.MarshalJSON(); err == nil {
			texts = append(texts, string(data))
		}
	}
	if texts == nil && r.StructuredContent != nil {
		data, _ := json.Marshal(r.StructuredContent)
		return string(data)
	}
	return strings.Join(texts, "\n")
}

// bounded ends the body of responses after maxReply bytes.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(q *http.Request) (*http.Response, error) {
	r, err := b.RoundTripper.RoundTrip(q)
	if err == nil {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(r.Body, maxReply), r.Body}
	}
	return r, err
}
