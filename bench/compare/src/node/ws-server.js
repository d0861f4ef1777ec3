// A bare echo on ws. Prints its port when it listens.
"use strict";
const { WebSocketServer } = require("ws");

const server = new WebSocketServer({
  host: "127.0.0.1",
  port: Number(process.argv[2] || 0),
  perMessageDeflate: false,
  backlog: 8192,
});
server.on("connection", (socket) => {
  socket.on("message", (data, isBinary) => socket.send(data, { binary: isBinary }));
  socket.on("error", () => {});
});
server.on("listening", () => console.log(server.address().port));
