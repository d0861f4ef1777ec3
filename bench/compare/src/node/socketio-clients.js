// Many Socket.IO clients in one process. Commands come as lines on stdin, what happens goes as lines to stdout:
//   a INDEX    a client is connected        r NUMBER   a client was given a message
//   c NUMBER   a send was confirmed         p          the watcher saw a presence event
"use strict";
const { io } = require("socket.io-client");
const readline = require("readline");

const [url, count] = [process.argv[2], Number(process.argv[3])];
const options = (auth) => ({
  transports: ["websocket"],
  forceNew: true,
  auth,
  // Full jitter from a quarter of a second, up to a second, as the others have.
  reconnectionDelay: 125,
  reconnectionDelayMax: 1000,
  randomizationFactor: 1,
});
let lines = [];
const say = (line) => {
  lines.push(line);
  if (lines.length === 1) {
    setImmediate(() => {
      process.stdout.write(lines.join("\n") + "\n");
      lines = [];
    });
  }
};

const clients = [];
// Sixty-four connect at a time: each that is there brings the next.
let started = 0;
const more = () => {
  if (started < count) {
    const index = started++;
    const socket = io(url, options({ index }));
    clients[index] = socket;
    socket.once("connect", more);
    socket.on("connect", () => say("a " + index));
    socket.on("m", (number) => say("r " + number));
    socket.on("hello", () => {});
  }
};
for (let at = 0; at < 64; at++) {
  more();
}
const watcher = io(url, options({ watch: true }));
watcher.on("presence", () => say("p"));
const sender = io(url, options({}));

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const [verb, to, number] = line.split(" ");
  if (verb === "cut") {
    for (const client of clients) {
      client.io.engine.transport.ws.terminate();
    }
  } else if (verb === "send") {
    sender.emit("send", Number(to), Number(number), () => say("c " + number));
  }
}).on("close", () => process.exit(0));
