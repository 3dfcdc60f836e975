// A member of a share group, by franz-go. tests/conformance/share_processes.py starts it.
//
// It reads commands from standard input, one a line, and writes a line of JSON after each:
//
//	poll MILLISECONDS         [[partition, offset, delivery count, value], ...] of one poll
//	ack TYPE PARTITION:OFFSET...   null; of records of the last poll: accept, release, reject, renew
//	flush                     [[partition, error or null], ...] of all acknowledgements since the last flush
//
// At the end of standard input it leaves the group.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 30 * time.Second

var statuses = map[string]kgo.AckStatus{
	"accept":  kgo.AckAccept,
	"release": kgo.AckRelease,
	"reject":  kgo.AckReject,
	"renew":   kgo.AckRenew,
}

type member struct {
	client *kgo.Client
	polled map[string]*kgo.Record // by "partition:offset"

	mu      sync.Mutex
	results [][2]any
}

func (m *member) acknowledged(_ *kgo.Client, results kgo.ShareAckResults) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range results {
		var text any
		if one.Err != nil {
			text = one.Err.Error()
		}
		m.results = append(m.results, [2]any{one.Partition, text})
	}
}

func (m *member) poll(wait time.Duration) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	fetches := m.client.PollFetches(ctx)
	for _, one := range fetches.Errors() {
		if !errors.Is(one.Err, context.DeadlineExceeded) {
			return nil, one.Err
		}
	}
	rows := [][4]any{}
	clear(m.polled)
	fetches.EachRecord(func(r *kgo.Record) {
		m.polled[fmt.Sprintf("%d:%d", r.Partition, r.Offset)] = r
		rows = append(rows, [4]any{r.Partition, r.Offset, r.DeliveryCount(), string(r.Value)})
	})
	return rows, nil
}

func (m *member) ack(kind string, places []string) error {
	status, known := statuses[kind]
	if !known {
		return fmt.Errorf("unknown acknowledge type %q", kind)
	}
	for _, place := range places {
		record, known := m.polled[place]
		if !known {
			return fmt.Errorf("the last poll has no record %s", place)
		}
		record.Ack(status)
	}
	return nil
}

func (m *member) flush() (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := m.client.FlushAcks(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	results := append([][2]any{}, m.results...)
	m.results = nil
	return results, nil
}

func (m *member) run(command string) (any, error) {
	words := strings.Fields(command)
	switch {
	case len(words) == 2 && words[0] == "poll":
		wait, err := strconv.Atoi(words[1])
		if err != nil {
			return nil, err
		}
		return m.poll(time.Duration(wait) * time.Millisecond)
	case len(words) >= 2 && words[0] == "ack":
		return nil, m.ack(words[1], words[2:])
	case len(words) == 1 && words[0] == "flush":
		return m.flush()
	}
	return nil, fmt.Errorf("unknown command %q", command)
}

func serve() error {
	brokers := flag.String("brokers", "", "host:port,...")
	group := flag.String("group", "", "share group")
	topic := flag.String("topic", "", "topic to read")
	most := flag.Int("max-records", 500, "records of one fetch, exactly")
	flag.Parse()
	m := &member{polled: map[string]*kgo.Record{}}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(*brokers, ",")...),
		kgo.ConsumeTopics(*topic),
		kgo.ShareGroup(*group),
		kgo.ShareMaxRecords(int32(*most)),
		kgo.ShareMaxRecordsStrict(),
		kgo.ShareAckCallback(m.acknowledged),
		kgo.FetchMaxWait(500*time.Millisecond),
		kgo.MetadataMinAge(100*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	m.client = client
	out := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		result, err := m.run(lines.Text())
		if err != nil {
			return err
		}
		if err := out.Encode(result); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return errors.Join(lines.Err(), client.LeaveGroupContext(ctx))
}

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
