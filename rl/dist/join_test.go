package dist

import (
	"net"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/must"
)

// TestStrangersAreRejected: a client without the token, or with another protocol, is disconnected silently.
func TestStrangersAreRejected(t *testing.T) {
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	guests := greet(t.Context(), listener, "token")
	knock := func(m *message, text string) *link {
		t.Helper()
		conn, err := net.Dial("tcp", listener.Addr().String())
		must.Do(t, err)
		t.Cleanup(func() { conn.Close() })
		l := newLink(conn, time.Minute)
		if m != nil {
			err = l.send(*m)
		} else {
			_, err = conn.Write([]byte(text))
		}
		must.Do(t, err)
		return l
	}
	for name, l := range map[string]*link{
		"without the token":   knock(&message{Kind: hello, Rank: 1, Size: 2, Member: &Member{}}, ""),
		"with another token":  knock(&message{Kind: hello, Rank: 1, Size: 2, Member: &Member{}, Token: "tokem"}, ""),
		"without what it is":  knock(&message{Kind: hello, Rank: 1, Size: 2, Token: "token"}, ""),
		"of another protocol": knock(nil, "GET / HTTP/1.1\r\n\r\n"),
	} {
		if m, err := l.receive(time.Now().Add(time.Minute)); err == nil {
			t.Errorf("a client %s receives %+v", name, m)
		}
	}
	knock(&message{Kind: hello, Rank: 1, Size: 2, Member: &Member{Version: "v"}, Token: "token"}, "")
	if g := <-guests; g.hello.Member.Version != "v" {
		t.Errorf("%+v was accepted", g.hello)
	}
}
